"""Bounds by an integral along a vertical line."""
