"""The version, kept where no import is needed to read it."""

__version__ = "0.1.0"
