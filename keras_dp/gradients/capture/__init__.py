"""The forward and backward pass that leaves records."""
