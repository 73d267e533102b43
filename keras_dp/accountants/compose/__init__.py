"""Certified bounds on composed privacy loss distributions."""
