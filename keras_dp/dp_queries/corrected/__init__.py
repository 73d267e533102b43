"""Answers that are corrected by what is known of their noise."""
