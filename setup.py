"""For tools that do not read pyproject.toml."""

from setuptools import setup

setup()
