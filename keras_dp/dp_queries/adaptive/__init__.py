"""Bounds and scales that follow what earlier rounds released."""
