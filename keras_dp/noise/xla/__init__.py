"""Integer arithmetic as loops that XLA compiles."""
