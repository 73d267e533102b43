"""Canaries: records that a coin puts into a training or leaves out."""
