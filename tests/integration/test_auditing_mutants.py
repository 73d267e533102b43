"""Every fault of the catalogue is found, and the library without it passes."""

import pytest

from keras_dp.auditing import check
from tests.audit_mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_every_fault_is_found(name, monkeypatch):
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)

        report = check(mutant.train(), mutant.source())

    assert not report.passed


def test_there_are_enough_faults():
    assert len(MUTANTS) >= 60
