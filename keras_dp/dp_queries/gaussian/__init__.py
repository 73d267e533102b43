"""Sums of bounded records with Gaussian noise."""
