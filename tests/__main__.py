"""Runs the tests where a build system wants a program."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([*sys.argv[1:], "tests"]))
