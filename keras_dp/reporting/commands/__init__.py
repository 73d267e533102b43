"""One file for each command: its arguments, and its answer as text."""
