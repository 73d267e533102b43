"""Checks for memorization on noise, which costs no privacy."""
