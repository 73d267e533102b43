"""Canaries: records that a coin inserts into a training or leaves out."""
