"""Refusals before the first round, and warnings, as tables of conditions."""
