"""Strategies of correlated noise: one kind of matrix a file."""
