"""Checks for memorization of noise, which have no privacy loss."""
