"""Statistics of examples, answered by queries of their own."""
