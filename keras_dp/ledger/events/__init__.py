"""Events: sampling, sum queries, and the noise that they add."""
