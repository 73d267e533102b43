"""Sums of records that are rounded to a few values."""
