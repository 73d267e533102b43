"""Ledgers of released versions open, and cost what they did."""

import shutil

import pytest

import keras_dp
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting import cli
from tests import released_ledgers

VERSIONS = sorted(
    path.parent for path in released_ledgers.FOLDER.glob("*/epsilons.json")
)
LEDGERS = sorted(released_ledgers.FOLDER.glob("*/*.ledger"))
SEALED = [path for path in LEDGERS if path.with_suffix(".json").exists()]
# Integrals end in other digits on other machines.
RELATIVE = 1e-6


def name_of(path):
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.standard
@pytest.mark.parametrize("path", LEDGERS, ids=name_of)
def test_costs_what_it_cost(path, tmp_path) -> None:
    stated = released_ledgers.stated(path.parent)

    with PrivacyLedger.open(shutil.copy(path, tmp_path), mode="r") as ledger:
        ledger.verify()
        found = released_ledgers.costs(ledger)

    assert found == pytest.approx(stated[path.stem], rel=RELATIVE)


@pytest.mark.parametrize("path", SEALED, ids=name_of)
def test_is_the_ledger_of_its_certificate(path, tmp_path, capsys) -> None:
    copied = str(shutil.copy(path, tmp_path))
    others = [each for each in SEALED if each != path]

    for certified, code in ((path, cli.OK), (others[0], cli.INCONSISTENT)):
        against = str(certified.with_suffix(".json"))
        assert cli.main(["verify", copied, "--against", against]) == code
    assert capsys.readouterr().out


def test_the_present_version_is_among_them() -> None:
    newest = released_ledgers.FOLDER / keras_dp.__version__

    assert newest in VERSIONS
    assert {path.stem for path in newest.glob("*.ledger")} == {
        kind.__name__ for kind in released_ledgers.KINDS
    }
