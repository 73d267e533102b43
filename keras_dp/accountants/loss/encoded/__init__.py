"""Privacy loss distributions of encoded sums with any noise."""
