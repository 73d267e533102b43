"""Rényi divergences of mechanisms."""
