"""Copies and certificates: the same ledger later, or an error."""

import dataclasses
import json
import math
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.reporting.certificate import Certificate, certify
from keras_dp.reporting.document import render
from keras_dp.reporting.explanation import explain
from keras_dp.reporting.report import make_report
from keras_dp.spending import RunLimits

DELTA = 1e-5
STEP = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))


def fill(ledger) -> None:
    ledger.record(STEP.sampling, STEP.queries, 5)
    budgets.open_account(
        ledger, "all", budgets.FixedPlan([(STEP, 500)], 3.0, DELTA)
    )
    run = ledger.start_run("a", limits=RunLimits(ledger))
    run.plan([(STEP, 300)])
    run.cover(Round(STEP.sampling, STEP.queries), 300)
    ledger.start_run("b", limits=RunLimits(ledger))
    run.settle(200)
    run.finish("stopped")


@pytest.fixture
def ledger():
    with PrivacyLedger.in_memory(dataset="d", unit="patient") as opened:
        fill(opened)
        yield opened


class TestCopies:
    def test_a_ledger_as_it_stood(self, ledger) -> None:
        for row in range(ledger.verify().rows + 1):
            assert ledger.until(row).verify().rows == row
        # The reservation counted in full until it was settled.
        lengths = [len(ledger.until(row)) for row in (1, 4, 6, 7)]
        assert lengths == [5, 5, 305, 205]
        with pytest.raises(ValueError, match="`row`"):
            ledger.until(99)


class TestCertificates:
    def test_says_what_the_ledger_costs(self, ledger) -> None:
        certificate = certify(ledger, delta=DELTA, note="first audit")

        assert certificate.rounds == 205
        assert certificate.runs == 2
        assert certificate.epsilon == pytest.approx(
            Fourier().epsilon([(STEP, 505)], delta=DELTA), abs=1e-6
        )
        assert ledger.seals[0].note == "first audit"
        printed = render(certificate.document(), "text")
        for words in ("first audit", *(run.name for run in ledger.runs)):
            assert words in printed
        certificate.check(ledger)

    def test_holds_for_a_copy_and_a_ledger_that_has_grown(self, ledger) -> None:
        certificate = certify(ledger, delta=DELTA)
        copy = ledger.until(ledger.verify().rows)
        run = copy.start_run("later", limits=RunLimits(copy))
        run.record(STEP.sampling, STEP.queries, 50)
        certify(copy, delta=DELTA)

        certificate.check(copy)
        assert Certificate.from_json(certificate.as_json()) == certificate

    def test_another_history_is_found(self) -> None:
        ledgers = []
        for noise in (4.0, 8.0):
            ledger = PrivacyLedger.in_memory(dataset="d")
            ledger.record(FullDataset(), [GaussianSum("s", 1.0, noise)])
            ledgers.append(ledger)
        first, second = (certify(each, delta=DELTA) for each in ledgers)

        first.check(ledgers[0])
        with pytest.raises(LedgerIntegrityError, match="not the one"):
            first.check(ledgers[1])
        forged = dataclasses.replace(first, seal_hash=second.seal_hash)
        with pytest.raises(LedgerIntegrityError, match="rows up to"):
            forged.check(ledgers[0])

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("epsilon", 0.1, "epsilon was"),
            ("epsilon", math.nan, "epsilon was"),
            ("rounds", 0, "rounds was"),
            ("runs", 0, "runs was"),
            ("libraries", "JAX", "libraries was"),
            ("proven_rounds", 1, "proven_rounds was"),
            ("seal_row", 1, "no seal"),
            ("names", "another model", "names was"),
            ("names", "", "names was"),
            ("note", "approved", "note was"),
            # An account promises under its own relation, whatever is asked.
            ("neighbours", "replace_one", "neighbours was"),
        ],
    )
    def test_another_claim_is_found(self, field, value, said, ledger) -> None:
        certificate = certify(ledger, delta=DELTA)

        forged = dataclasses.replace(certificate, **{field: value})
        with pytest.raises(LedgerIntegrityError, match=said):
            forged.check(ledger)

    def test_an_older_copy_is_found(self, ledger) -> None:
        older = ledger.until(ledger.verify().rows)
        certificate = certify(ledger, delta=DELTA)

        with pytest.raises(LedgerIntegrityError, match="no seal"):
            certificate.check(older)

    def test_a_ledger_without_a_bound(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        ledger.record(FullDataset(), [GaussianSum("s", 1.0, 0.0)])

        again = Certificate.from_json(certify(ledger, delta=DELTA).as_json())
        assert again.epsilon == float("inf")
        again.check(ledger)

    @pytest.mark.parametrize(
        "options",
        [{"delta": 0}, {"delta": 1}, {"delta": DELTA, "neighbours": "x"}],
        ids=repr,
    )
    def test_wrong_arguments_seal_nothing(self, ledger, options) -> None:
        with pytest.raises(ValueError, match="must be"):
            certify(ledger, **options)

        assert ledger.seals == ()

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"kind":"x"}', "null", "[" * 100_000]
    )
    def test_another_text_is_none(self, text) -> None:
        with pytest.raises(LedgerFormatError):
            Certificate.from_json(text)

    @pytest.mark.parametrize(
        "change",
        [
            {"epsilon": "0.5"},
            {"epsilon": True},
            {"rounds": 1.5},
            {"theorem": None},
            {"neighbours": "other"},
            {"neighbours": ["replace_one"]},
            {"epsilon": 10**400},
            {"issued": 10**30},
            {"rounds": -1},
            {"delta": -1e-5},
        ],
        ids=repr,
    )
    def test_a_field_of_another_kind_is_refused(self, ledger, change) -> None:
        content = json.loads(certify(ledger, delta=DELTA).as_json())

        (name,) = change
        with pytest.raises(LedgerFormatError, match=f"its {name} is"):
            Certificate.from_json(json.dumps({**content, **change}))


class TestOtherLibraries:
    """Rounds that another library ran are said to be unchecked."""

    @pytest.fixture
    def elsewhere(self, ledger):
        run = ledger.start_run(
            "c", library="other 1.0", limits=RunLimits(ledger)
        )
        run.record(STEP.sampling, STEP.queries, 7)
        return ledger

    def test_are_named(self, elsewhere) -> None:
        certificate = certify(elsewhere, delta=DELTA)

        text = "\n".join(certificate.sentences)
        assert "Rounds ran in other 1.0." in text
        assert "declared, and not checked" in text
        again = Certificate.from_json(certificate.as_json())
        assert again.check(elsewhere) == certificate
        (caution,) = (
            each
            for each in make_report(elsewhere, delta=DELTA).facts["cautions"]
            if "other 1.0" in each
        )
        assert caution.startswith("7 rounds ran in other 1.0.")
        assert caution in " ".join(str(explain(elsewhere, delta=DELTA)).split())

    @pytest.mark.parametrize("libraries", ["", "other 2.0"])
    def test_and_nobody_can_leave_them_out(self, elsewhere, libraries) -> None:
        certificate = certify(elsewhere, delta=DELTA)

        forged = dataclasses.replace(certificate, libraries=libraries)
        with pytest.raises(LedgerIntegrityError, match="libraries was"):
            forged.check(elsewhere)

    def test_a_run_without_rounds_ran_nowhere(self, ledger) -> None:
        ledger.start_run("c", library="other 1.0", limits=RunLimits(ledger))

        assert certify(ledger, delta=DELTA).libraries == ""


class TestSignatures:
    @pytest.fixture
    def key(self):
        return ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def test_a_signed_certificate_is_whole(self, ledger, key) -> None:
        signed = certify(ledger, delta=DELTA).signed(key)
        again = Certificate.from_json(signed.as_json())

        again.check_signature()
        again.check_signature(signed.public_key)
        with pytest.raises(LedgerIntegrityError, match="signed by"):
            again.check_signature("00" * 32)

    @pytest.mark.parametrize(
        "change",
        [
            {"epsilon": 0.1},
            {"rounds": 1},
            {"delta": 1e-9},
            {"theorem": "none"},
            {"libraries": "other 1.0"},
            {"signature": "00"},
            {"signature": "x"},
            {"public_key": "00" * 32},
        ],
    )
    def test_a_change_is_found(self, ledger, key, change) -> None:
        signed = certify(ledger, delta=DELTA).signed(key)
        with pytest.raises(LedgerIntegrityError):
            dataclasses.replace(signed, **change).check_signature()

    def test_says_how_to_install_what_signs(
        self, ledger, key, monkeypatch
    ) -> None:
        certificate = certify(ledger, delta=DELTA)
        monkeypatch.setitem(
            sys.modules, "cryptography.hazmat.primitives.asymmetric", None
        )

        for attempt in (
            lambda: certificate.signed(key),
            certificate.check_signature,
        ):
            with pytest.raises(ImportError, match=r"keras_dp\[signing\]"):
                attempt()

    def test_no_signature_is_found(self, ledger) -> None:
        with pytest.raises(LedgerIntegrityError, match="not signed"):
            certify(ledger, delta=DELTA).check_signature()
