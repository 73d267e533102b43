"""Privacy loss distributions of one round."""
