"""Batches as the step takes them: masks, weights, maps of records."""
