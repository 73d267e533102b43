"""Models that cannot be trained privately: layers, and writes to variables."""
