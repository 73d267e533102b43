"""Refusals before the first round, progress, and advice."""
