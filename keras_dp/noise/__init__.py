"""Seeds, and the noise that is drawn from them."""
