"""One compiled round: gradients, sums, noise, updates."""
