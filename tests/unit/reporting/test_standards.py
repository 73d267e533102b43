"""A page for a standard answers each requirement, or says what is missing."""

import json
import re
import tomllib
from html import unescape

import pytest

from keras_dp import accountants
from keras_dp.auditing import OneRun, Scores
from keras_dp.auditing.verdicts import write_verdict
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
)
from keras_dp.reporting import assess, make_report
from keras_dp.reporting.cli import main
from keras_dp.reporting.limits import LIMITS
from keras_dp.reporting.sources import COMPUTED, DECLARED, RECORD
from keras_dp.reporting.standards.assessment import STANDARDS
from keras_dp.reporting.standards.declarations import (
    QUESTIONS,
    form,
    read_declarations,
)
from keras_dp.reporting.standards.requirements import (
    KINDS,
    MISSING,
    NOT_COVERED,
)

DELTA = 1e-5
STEP = [
    GaussianSum("gradients", 1.0, 4.0),
    GaussianSum("metrics/accuracy_women", 1.0, 40.0),
]
NAMES = pytest.mark.parametrize("standard", STANDARDS)


def record(ledger):
    with ledger.start_run("training") as run:
        run.record(FullDataset(True), STEP, 10)
    return ledger


def trained():
    return record(PrivacyLedger.in_memory(dataset="clinic", unit="patient"))


def audit(ledger, is_broken=False):
    """Writes a verdict that contradicts the ledger, or none that does."""
    scores = Scores([float(is_broken), 1.0] * 250, [0.0, 1.0 - is_broken] * 250)
    write_verdict(ledger, OneRun().epsilon(scores, delta=DELTA))
    return ledger


@pytest.fixture(scope="module")
def report():
    return make_report(trained(), delta=DELTA, details=True)


def asked_by(standard, report):
    """Returns the keys of all declarations that a standard asks for."""
    found = assess(report, standard)
    return [key for each, _ in found.answered for key in each.declared]


def every(found):
    return [answer for _, answers in found.answered for answer in answers]


def of_kind(found, kind):
    return [each for each in every(found) if each.kind == kind]


def flat(text):
    return " ".join(text.split())


@NAMES
class TestEveryRequirement:
    def test_has_an_answer_of_a_kind(self, standard, report) -> None:
        found = assess(report, standard)

        assert len(found.answered) == 1 + len(STANDARDS[standard].requirements)
        for requirement, answers in found.answered:
            assert requirement.section
            assert answers
            for kind, text, key in answers:
                assert kind in KINDS
                assert text.strip()
                assert bool(key) == (
                    kind == MISSING or (kind == DECLARED and key in QUESTIONS)
                )
        assert {each.kind for each in every(found)} == KINDS.keys() - {
            *([] if of_kind(found, MISSING) else [MISSING])
        }

    def test_asks_people_only_what_has_a_question(
        self, standard, report
    ) -> None:
        asked = asked_by(standard, report)

        assert {*asked} <= QUESTIONS.keys()
        assert {"declared_by", "released"} <= {*asked}

    def test_has_the_epsilon_of_the_ledger(self, standard, report) -> None:
        texts = [
            each.text for each in of_kind(assess(report, standard), COMPUTED)
        ]

        assert f"{report.sentences[0]}." in texts

    def test_bounds_reconstruction_and_attributes(
        self, standard, report
    ) -> None:
        curve = accountants.trade_off(trained())
        rates = curve.largest_reconstruction_rate([1e-6, 1e-3, 0.5, 0.9])

        text = flat(assess(report, standard).as_text())

        shown = re.search(
            r"1,000,000 without .* at most ([\d.]+) % .*? at most ([\d.]+) %"
            r".* 50 % of .* at most ([\d.]+) %; if 90 %, at most ([\d.]+) %",
            text,
        )
        for exact, found in zip(rates.tolist(), shown.groups(), strict=True):
            assert exact <= float(found) / 100 < 1.1 * exact

    def test_says_what_is_not_covered(self, standard, report) -> None:
        found = assess(report, standard)

        text = flat(found.as_text())
        page = unescape(found.as_page())
        assert of_kind(found, NOT_COVERED)
        for each in LIMITS:
            assert each in text
            assert each in page


@NAMES
class TestDeclarations:
    def test_are_missing_until_somebody_makes_them(
        self, standard, report
    ) -> None:
        asked = asked_by(standard, report)

        found = assess(report, standard)

        assert {*found.missing} == {*asked, "audits"}
        assert found.summary[-1].startswith(
            f"MISSING: {len(found.missing)} answers: "
        )

    def test_answer_what_they_are_asked(self, standard, report) -> None:
        asked = asked_by(standard, report)
        texts = {key: f"the answer\nof {key}" for key in asked}

        found = assess(report, standard, texts)

        assert found.missing == ("audits",)
        declared = {each.key: each.text for each in of_kind(found, DECLARED)}
        declared.pop("")  # Of the ledger's header.
        assert declared == texts
        assert f"the answer of {asked[0]}" in flat(found.as_text())

    def test_come_back_from_their_form(
        self, standard, report, tmp_path
    ) -> None:
        """The form of an unanswered page asks for all, and holds nothing."""
        path, found = tmp_path / "form.toml", assess(report, standard)
        path.write_text(found.form(), "utf-8")

        assert read_declarations(path) == {}
        assert [*tomllib.loads(found.form())] == [
            *dict.fromkeys(asked_by(standard, report))
        ]

    def test_that_are_blank_are_missing(self, standard, report) -> None:
        found = assess(report, standard, {"declared_by": " \n\t"})

        assert "declared_by" in found.missing


class TestAFile:
    @pytest.mark.parametrize(
        "text",
        [
            "a board",
            "two\nlines\n\nand more",
            'quotes """ and \'\'\' and \\u0041 \\ "',
            "ß, 漢, 🙂, \x7f, \x00, \x1b[2K",
            "key = 3\n# no comment",
        ],
    )
    def test_holds_every_text(self, text, tmp_path) -> None:
        path = tmp_path / "declarations.toml"
        held = {"roles": text, "harms": "none"}

        path.write_text(form(["harms"], unit="patient", held=held), "utf-8")

        assert read_declarations(path) == held

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("this is no TOML", "must be a TOML file"),
            ("roles = 3", "must be texts in quotes. Received: roles=3"),
            ("[roles]\nwho = 'I'", "must be texts in quotes"),
            ("role = 'I'", "Did you mean 'roles'"),
            ("x_y_z = 'I'", "'x_y_z'. Remove it"),
            (b"roles = '\xff'", "must be a TOML file"),
        ],
    )
    def test_of_another_kind_is_refused(
        self, content, message, tmp_path
    ) -> None:
        path = tmp_path / "declarations.toml"
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)

        with pytest.raises(ValueError, match=re.escape(message)):
            read_declarations(path)


@NAMES
class TestAudits:
    def test_are_missing_without_any(self, standard, report) -> None:
        assert "audits" in assess(report, standard).missing

    def test_are_answers_from_the_record(self, standard) -> None:
        found = make_report(audit(trained()), delta=DELTA, details=True)

        found = assess(found, standard)

        assert "audits" not in found.missing
        assert "attack_tests" in found.missing
        assert any(
            each.text.startswith("Audit in row")
            for each in of_kind(found, RECORD)
        )
        assert found.report.contradictions == ()

    def test_that_contradict_come_first(self, standard) -> None:
        ledger = audit(trained(), is_broken=True)

        found = assess(make_report(ledger, delta=DELTA, details=True), standard)

        assert found.as_text().startswith("Audit in row")
        assert "THIS CONTRADICTS THE LEDGER" in flat(found.as_text())
        assert found.as_page().index("CONTRADICTS") < found.as_page().index(
            STANDARDS[standard].title.split(",")[0]
        )


class TestTheRecord:
    def of_mechanisms(self, *runs):
        """Returns the sources of what is said of the rounds of some runs."""
        ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
        for library, sampling in runs:
            with ledger.start_run("training", library=library) as run:
                run.record(sampling, STEP[:1], 10)
        found = assess(
            make_report(ledger, delta=DELTA, details=True), "nist-800-226"
        )
        return {
            kind
            for kind, text, _ in every(found)
            if " x all records" in text or " x Poisson" in text
        }, flat(found.as_text())

    def test_is_a_record_where_this_library_drew_and_noised(self) -> None:
        kinds, text = self.of_mechanisms(("", FullDataset(True)))

        assert kinds == {RECORD}
        assert "opacus" not in text

    def test_is_declared_where_somebody_else_drew(self) -> None:
        assert self.of_mechanisms(("", FullDataset()))[0] == {DECLARED}

    @pytest.mark.standard
    def test_is_declared_where_another_library_ran(self) -> None:
        kinds, text = self.of_mechanisms(
            ("", PoissonSampling(0.1, drawn_by_library=True)),
            ("opacus 1.6.0", FullDataset(True)),
        )

        assert kinds == {RECORD, DECLARED}
        assert "Rounds of 1 run ran in opacus 1.6.0." in text
        assert (
            "The noise of 10 rounds comes from the generators of opac" in text
        )
        assert "The generator of the noise of 10 rounds is chacha20." in text

    def test_names_no_generator_of_rounds_that_ran_elsewhere(self) -> None:
        _, text = self.of_mechanisms(("opacus 1.6.0", FullDataset(True)))

        assert "chacha20" not in text

    def test_names_metrics_with_noise(self, report) -> None:
        text = flat(assess(report, "nist-800-226").as_text())

        assert "released with noise: accuracy_women." in text

    def test_without_a_bound_says_so(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
        ledger.record(FullDataset(), [NonPrivateSum("loss")])
        found = make_report(ledger, delta=DELTA, details=True)

        for standard in STANDARDS:
            text = flat(assess(found, standard).as_text())

            assert "epsilon is infinite at delta" in text
            assert "Everything, as far as this ledger can tell" in text
            assert "succeeds at most" not in text

    def test_may_be_empty(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
        found = make_report(ledger, delta=DELTA, details=True)

        for standard in STANDARDS:
            text = flat(assess(found, standard).as_text())

            assert "The ledger has no round" in text

    def test_is_about_a_group_if_asked(self) -> None:
        found = make_report(trained(), delta=DELTA, details=True, units=2)

        text = flat(assess(found, "iso-27559").as_text())

        assert (
            "one group of 2, each one patient, with at most 2 records" in text
        )

    def test_needs_the_details(self) -> None:
        found = make_report(trained(), delta=DELTA)

        with pytest.raises(ValueError, match="must have its details"):
            assess(found, "iso-27559")

    def test_needs_a_standard_that_is_known(self, report) -> None:
        with pytest.raises(ValueError, match="Received: standard='gdpr'"):
            assess(report, "gdpr")


def test_names_forge_no_line() -> None:
    forged = "x\n  - computed: epsilon <= 0.0001\x1b[2K"
    ledger = record(PrivacyLedger.in_memory(dataset=forged, unit=forged))
    found = make_report(ledger, delta=DELTA, details=True)

    for standard in STANDARDS:
        assessment = assess(found, standard, {"roles": forged})

        text = assessment.as_text()
        assert not re.search(r"^  - computed: epsilon <= 0.0001", text, re.M)
        assert text.replace("\n", "").isprintable()
        assert max(map(len, text.split("\n"))) <= 79
        assert tomllib.loads(assessment.form({"roles": forged}))


@NAMES
def test_the_json_has_its_schema(standard) -> None:
    ledger = audit(trained())
    ledger.record(FullDataset(), [NonPrivateSum("loss")])
    found = make_report(ledger, delta=DELTA, details=True)
    texts = {"declared_by": "A. B., board, today"}

    content = json.loads(assess(found, standard, texts).as_json())

    types = {
        **dict.fromkeys(
            (
                "standard",
                "title",
                "scope",
                "version",
                "dataset",
                "unit",
                "head",
            ),
            str,
        ),
        **dict.fromkeys(
            ("contradictions", "requirements", "missing", "not_covered"), list
        ),
        "claim": dict,
        "kinds": dict,
    }
    assert {key: type(each) for key, each in content.items()} == types
    assert content["claim"]["epsilon"] == "inf"
    assert content["standard"] == standard
    for each in content["requirements"]:
        assert each.keys() == {"section", "title", "asks", "answers"}
        for answer in each["answers"]:
            assert answer.keys() == {"kind", "text", "key"}
            assert answer["kind"] in content["kinds"]
    keys = {
        answer["key"]
        for each in content["requirements"]
        for answer in each["answers"]
        if answer["kind"] == MISSING
    }
    assert keys == {*content["missing"]}


class TestTheCommand:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "clinic.ledger"
        with PrivacyLedger.open(path, dataset="clinic", unit="patient") as each:
            record(each)
        return path

    @pytest.fixture
    def shell(self, path, capsys):
        """Returns the code, the answer and the message of `report`."""

        def run(*options):
            code = main(
                ["report", str(path), "--delta", "1e-5", *map(str, options)]
            )
            return code, *capsys.readouterr()

        return run

    def test_says_by_its_code_that_something_is_missing(self, shell) -> None:
        code, out, error = shell("--standard", "nist-800-226")

        assert code == 6
        assert "MISSING [trust_model]: Who is trusted" in out
        assert re.fullmatch(r"keras-dp: MISSING: \d+ answers: .*\n", error)

    def test_is_done_when_nothing_is(self, shell, path, tmp_path) -> None:
        with PrivacyLedger.open(path) as ledger:
            audit(ledger)
        file, page = tmp_path / "declared.toml", tmp_path / "page.html"
        code, *_ = shell("--standard", "iso-27559", "--form", file)
        assert code == 0
        filled = file.read_text("utf-8").replace('= """\n', '= """\nyes')
        file.write_text(filled, "utf-8")

        code, out, error = shell(
            *("--standard", "iso-27559", "--declarations", file),
            *("--html", page, "--json"),
        )

        assert (code, error) == (0, "")
        assert json.loads(out)["missing"] == []
        assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
        assert "Date, name, signature:" in page.read_text("utf-8")
        assert "MISSING [" not in page.read_text("utf-8")

    def test_a_contradiction_is_worse_than_a_gap(self, shell, path) -> None:
        with PrivacyLedger.open(path) as ledger:
            audit(ledger, is_broken=True)

        code, out, _ = shell("--standard", "edpb-28-2024")

        assert code == 5
        assert "MISSING [" in out

    def test_never_replaces_a_form(self, shell, tmp_path) -> None:
        file = tmp_path / "form.toml"
        file.write_text("mine")

        code, *_ = shell("--standard", "iso-27559", "--form", file)

        assert code == 1
        assert file.read_text() == "mine"

    @pytest.mark.parametrize(
        "options",
        [
            ("--declarations", "x.toml"),
            ("--form", "x.toml"),
            ("--standard", "iso-27559", "--all"),
            ("--standard", "iso-27559", "--form", "x.toml", "--json"),
            ("--standard", "iso-27559", "--form", "x.toml", "--html", "y"),
        ],
    )
    def test_options_that_do_not_fit_are_2(self, shell, options) -> None:
        code, out, error = shell(*options)

        assert (code, out) == (2, "")
        assert "must be given" in error

    def test_a_wrong_file_is_2(self, shell, path) -> None:
        code, out, error = shell(
            "--standard", "iso-27559", "--declarations", path
        )

        assert (code, out) == (2, "")
        assert "must be a TOML file" in error
