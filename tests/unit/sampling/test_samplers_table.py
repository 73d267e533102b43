"""The table of random allocation beside Poisson samples is what it computes."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    path = ROOT / "benchmarks" / "samplers.py"
    spec = importlib.util.spec_from_file_location("samplers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("batches", "picks", "epochs"),
    [
        (10, 1, 1),
        (10, 4, 10),
        pytest.param(100, 1, 10, marks=pytest.mark.standard),
        pytest.param(100, 2, 1, marks=pytest.mark.standard),
    ],
)
def test_a_row_is_what_is_computed(script, batches, picks, epochs) -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    (row,) = re.findall(
        rf"^\| {batches} \| {picks} \| {epochs} \| (.*) \|$", text, re.M
    )

    cells = []
    for noise_multiplier in script.NOISE_MULTIPLIERS:
        ours, poisson = script.epsilons(
            batches, epochs, noise_multiplier, 1e-6, picks
        )
        assert ours <= poisson
        cells.append(f"{ours:.4g} ({ours / poisson:.2f})")

    assert row == " | ".join(cells)
