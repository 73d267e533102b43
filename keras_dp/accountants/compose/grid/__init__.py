"""Bounds by Fourier transforms on a grid."""
