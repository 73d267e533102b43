"""Checks of a model before its first private step."""
