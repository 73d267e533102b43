"""Commitments and verdicts in a ledger, and in its reports."""

import contextlib
import dataclasses
import json
import sqlite3

import pytest

from keras_dp.accountants import Fourier
from keras_dp.auditing import LowerBound, judgements, write_verdict
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import (
    Commitment,
    FullDataset,
    GaussianSum,
    Opening,
    PrivacyLedger,
    Verdict,
)
from keras_dp.ledger.rows import chain, log, statements
from keras_dp.ledger.rows.audits import digest_of
from keras_dp.reporting import make_report
from keras_dp.reporting.certificate import certify
from keras_dp.reporting.cli import main
from keras_dp.reporting.report_page import report_page

DELTA = 1e-5
SAMPLING = FullDataset()
STEP = [GaussianSum("gradients", 1.0, 400.0)]
SALT, CONTENT, COINS = "ab" * 32, "cd" * 32, "b400"  # Ten canaries.


def bound(epsilon, **fields):
    known = {
        "epsilon": epsilon,
        "delta": DELTA,
        "confidence": 0.95,
        "neighbours": "add_or_remove_one",
        "estimator": "OneRun",
        "statistic": "90 of 100 guesses right",
        "assumptions": ("the coins are fair",),
    }
    return LowerBound(**{**known, **fields})


def commitment(canaries=10):
    return Commitment(digest_of(SALT, COINS, CONTENT), canaries)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        ledger.write_commitment(commitment())
        for name in ("first", "second"):
            with ledger.start_run(name) as run:
                run.record(SAMPLING, STEP, 1000)
        yield ledger


def opening(row=1, coins=COINS):
    return Opening(row, SALT, coins, CONTENT)


class TestARow:
    def test_comes_back_and_costs_nothing(self, ledger) -> None:
        before = Fourier().epsilon(ledger, delta=DELTA)

        judged = write_verdict(
            ledger,
            bound(0.1),
            p_value=0.3,
            runs=[2],
            records=2,
            opening=opening(),
        )

        assert ledger.verdicts == (judged.record,)
        found = judged.record.statement
        assert (found.epsilon, found.p_value, found.runs) == (0.1, 0.3, (5,))
        assert found.opening == opening()
        assert ledger.commitments[0].statement.is_opened_by(found.opening)
        assert ledger.verify().rows == 9
        assert Fourier().epsilon(ledger, delta=DELTA) == before
        assert [run.name for run in ledger.runs] == ["first", "second"]

    def test_stands_in_a_file_or_on_a_server(self, address) -> None:
        with PrivacyLedger.open(address, dataset="clinic") as ledger:
            fixed = ledger.write_commitment(commitment())
            with ledger.start_run("first") as run:
                run.record(SAMPLING, STEP)
            judged = write_verdict(
                ledger,
                bound(0.0),
                runs=[run.number],
                opening=opening(fixed.number),
            )

        with PrivacyLedger.open(address, mode="r") as ledger:
            assert ledger.commitments == (fixed,)
            assert ledger.verdicts == (judged.record,)

    def test_survives_copies_and_later_rounds(self, ledger) -> None:
        write_verdict(ledger, bound(0.1), runs=[2], opening=opening())
        ledger.record(SAMPLING, STEP)

        again = ledger.until(ledger.verify().rows)

        assert again.verdicts == ledger.verdicts
        with PrivacyLedger.open(ledger.path, mode="r") as reader:
            assert reader.verdicts == ledger.verdicts

    @pytest.mark.parametrize(
        "change",
        [
            {"seal_hash": "0" * 64},
            {"seal_row": 1},
            {"seal_row": 99},
            {"runs": (1,)},
            {"runs": (9,)},
            {"opening": opening(row=2)},
            {"opening": opening(coins="b440")},
            {"opening": opening(coins="b4")},
        ],
        ids=str,
    )
    def test_that_speaks_of_other_rows_is_refused(self, ledger, change) -> None:
        seal = ledger.seal()
        verdict = Verdict(
            *("OneRun", "", 0.1, DELTA, 0.95, "replace_one", 1, (), None),
            runs=(2,),
            seal_row=seal.number,
            seal_hash=seal.hash,
            opening=opening(),
        )
        rows = ledger.verify().rows

        with pytest.raises(ValueError, match="`verdict` must name rows"):
            ledger.write_verdict(dataclasses.replace(verdict, **change))

        assert ledger.verify().rows == rows
        ledger.write_verdict(verdict)  # The control.

    def test_needs_a_commitment_that_came_before_its_runs(self, ledger) -> None:
        late = ledger.write_commitment(commitment()).number

        with pytest.raises(ValueError, match="came before the training"):
            write_verdict(
                ledger, bound(0.1), runs=[2], opening=opening(row=late)
            )

    def test_of_coins_beyond_the_last_canary_is_refused(self) -> None:
        """Else one commitment could be opened in two ways."""
        committed = Commitment(digest_of(SALT, "b420", CONTENT), 10)

        assert not committed.is_opened_by(opening(coins="b420"))
        assert dataclasses.replace(committed, canaries=11).is_opened_by(
            opening(coins="b420")
        )

    def test_that_was_forged_is_found(self, ledger) -> None:
        """Even if every hash was computed anew."""
        write_verdict(ledger, bound(0.1), runs=[2], opening=opening())
        path = ledger.path
        ledger.close()
        _edited(path)
        PrivacyLedger.open(path, mode="r").close()  # The control.

        _edited(path, 'replace(body, \'"coins":"b4\', \'"coins":"f4\')')

        with pytest.raises(LedgerIntegrityError, match="does not open"):
            PrivacyLedger.open(path, mode="r")

    def test_of_a_kind_that_is_not_known_is_refused(self, ledger) -> None:
        """As versions without verdicts refuse verdicts."""
        write_verdict(ledger, bound(0.1))
        path = ledger.path
        ledger.close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "UPDATE log SET kind = 'omen' WHERE kind = 'verdict'"
            )
            connection.commit()
        _edited(path)

        with pytest.raises(LedgerIntegrityError, match="does not know"):
            PrivacyLedger.open(path, mode="r")

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("commitment", '{"canaries":1,"digest":"ab","note":""}'),
            ("commitment", "{}"),
            ("verdict", "{}"),
        ],
    )
    def test_that_nobody_can_have_written_is_an_error(self, kind, text) -> None:
        with pytest.raises(LedgerFormatError):
            statements.statement_from_text(kind, text)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("epsilon", -1.0),
            ("epsilon", float("inf")),
            ("delta", 1.0),
            ("confidence", 1.0),
            ("neighbours", "close"),
            ("p_value", 0.0),
            ("records", 0),
            ("assumptions", ("",)),
            ("seal_hash", "AB" * 32),
        ],
    )
    def test_that_cannot_be_is_refused(self, ledger, field, value) -> None:
        verdict = write_verdict(ledger, bound(0.1)).record.statement

        with pytest.raises(ValueError, match=f"`{field}` must"):
            dataclasses.replace(verdict, **{field: value})


class TestAJudgement:
    def test_compares_the_same_runs_delta_and_relation(self, ledger) -> None:
        whole = write_verdict(ledger, bound(0.1))
        one = write_verdict(ledger, bound(0.1, delta=1e-3), runs=[2])
        replaced = write_verdict(ledger, bound(0.1, neighbours="replace_one"))
        two = write_verdict(ledger, bound(0.1), records=2)

        first = ledger.rounds_of(2)
        assert [each.certified.epsilon for each in judgements(ledger)] == [
            pytest.approx(Fourier().epsilon(ledger, delta=DELTA)),
            pytest.approx(Fourier().epsilon(first, delta=1e-3)),
            replaced.certified.epsilon,
            two.certified.epsilon,
        ]
        assert one.certified.epsilon < whole.certified.epsilon
        assert replaced.certified.epsilon > whole.certified.epsilon
        assert two.certified.epsilon > whole.certified.epsilon

    def test_is_about_the_ledger_as_it_was_at_the_seal(self, ledger) -> None:
        before = write_verdict(ledger, bound(0.1)).certified
        ledger.record(SAMPLING, STEP, 100_000)

        assert judgements(ledger)[0].certified == before

    def test_contradicts_above_the_certified_epsilon(self, ledger) -> None:
        certified = write_verdict(ledger, bound(0.0)).certified.epsilon

        assert not write_verdict(ledger, bound(certified)).is_contradiction
        above = write_verdict(ledger, bound(certified * 1.0001))
        assert above.is_contradiction
        assert "THIS CONTRADICTS THE LEDGER" in above.sentence
        assert "at most one of 20 correct trainings" in above.warning

    def test_contradicts_at_a_small_p_value(self, ledger) -> None:
        def is_contradiction(p_value):
            judged = write_verdict(ledger, bound(0.0), p_value=p_value)
            return judged.is_contradiction

        assert [is_contradiction(each) for each in (0.051, 0.049)] == [0, 1]

    def test_rounds_the_bound_down(self, ledger) -> None:
        judged = write_verdict(ledger, bound(0.12349))

        assert "epsilon >= 0.1234 with 95 % confidence" in judged.sentence


class TestReports:
    def test_show_the_verdict_beside_epsilon(self, ledger) -> None:
        judged = write_verdict(ledger, bound(0.1), p_value=0.5, runs=[2])

        report = make_report(ledger, delta=DELTA, details=True)

        text = " ".join(report.as_text().split())
        assert judged.sentence in text
        assert "if the coins are fair" in text
        assert report.contradictions == ()
        (audit,) = json.loads(report.as_json())["audits"]
        assert (audit["epsilon"], audit["p_value"]) == (0.1, 0.5)
        assert audit["certified_epsilon"] == judged.certified.epsilon
        assert "epsilon &gt;= 0.1000 with 95 % confi" in report_page(report)

    def test_begin_with_a_contradiction(self, ledger) -> None:
        judged = write_verdict(ledger, bound(5.0))

        report = make_report(ledger, delta=DELTA, details=True)

        assert report.contradictions == (judged.warning,)
        assert report.as_text().startswith(judged.warning[:50])
        page = report_page(report)
        assert page.index("CONTRADICTS") < page.index("privacy unit")

    @pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
    def test_end_with_an_error_then(self, ledger, options, capsys) -> None:
        command = ["report", str(ledger.path), "--delta", "1e-5", *options]
        write_verdict(ledger, bound(0.1))
        assert main(command) == 0
        well = capsys.readouterr()
        write_verdict(ledger, bound(5.0))

        assert main(command) == 5

        out, err = capsys.readouterr()
        assert well.err == ""
        assert len(out) > len(well.out)
        assert "THIS CONTRADICTS THE LEDGER" in err
        if options:
            assert json.loads(out)["audits"][1]["is_contradiction"]

    def test_so_does_seal(self, ledger, tmp_path, capsys) -> None:
        write_verdict(ledger, bound(5.0))
        ledger.close()
        out = tmp_path / "certificate.json"
        options = ["--delta", "1e-5", "--out", str(out)]

        assert main(["seal", str(ledger.path), *options]) == 5

        assert "THIS CONTRADICTS THE LEDGER" in capsys.readouterr().err
        assert json.loads(out.read_text())["rounds"] == 2000

    def test_so_does_verify(self, ledger, capsys) -> None:
        write_verdict(ledger, bound(5.0))

        assert main(["verify", str(ledger.path)]) == 5

        out, err = capsys.readouterr()
        assert out.startswith("OK: 9 rows")
        assert "THIS CONTRADICTS THE LEDGER" in err

    @pytest.mark.parametrize("command", ["explain", "runs"])
    def test_say_in_a_line_what_audits_found(
        self, ledger, command, capsys
    ) -> None:
        options = [command, str(ledger.path), "--delta", "1e-5"]
        assert main(options) == 0
        assert "Audits: none." in capsys.readouterr().out

        write_verdict(ledger, bound(0.01239))
        assert main(options) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "1 verdict, none contradicts the ledger" in said
        assert "epsilon >= 0.0123 at delta = 1e-05, with 95 %" in said

        write_verdict(ledger, bound(50.0))
        assert main(options) == 5
        said = " ".join(capsys.readouterr().out.split())
        assert "2 verdicts, 1 CONTRADICTS THE LEDGER" in said
        assert "epsilon >= 50.0000" in said


class TestCertificates:
    def test_hold_what_audits_found(self, ledger) -> None:
        write_verdict(ledger, bound(0.01239))
        certificate = certify(ledger, delta=DELTA)

        certificate.check(ledger)

        assert (certificate.audits, certificate.contradictions) == (1, 0)
        assert "epsilon >= 0.0123" in certificate.sentences[-1]

    @pytest.mark.parametrize(
        "change",
        [{"audits": 2}, {"contradictions": 1}, {"audited_epsilon": 0.02}],
    )
    def test_that_say_something_else_are_refused(self, ledger, change) -> None:
        write_verdict(ledger, bound(0.01239))
        certificate = certify(ledger, delta=DELTA)

        with pytest.raises(LedgerIntegrityError, match="certificate says"):
            dataclasses.replace(certificate, **change).check(ledger)

    def test_keep_to_the_seal(self, ledger) -> None:
        certificate = certify(ledger, delta=DELTA)
        write_verdict(ledger, bound(0.01239))

        certificate.check(ledger)

        assert certificate.audits == 0


def _edited(path, body=None) -> None:
    """Changes verdicts and computes every hash anew, as a forger would."""
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None)
    ) as connection:
        if body is not None:
            connection.execute(f"UPDATE bodies SET body = {body}")
        previous = None
        for row in log.rows(connection):
            digest = chain.hash_of(
                chain.hash_before(log.meta(connection), previous), *row[:-1]
            )
            connection.execute(
                "UPDATE log SET hash = ? WHERE seq = ?", [digest, row.seq]
            )
            previous = row._replace(hash=digest)
        log.finish(connection, "")
