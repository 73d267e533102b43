"""Runs, accounts and seals of a ledger, as a shell sees them."""

import json
import re

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.reporting import account_states, run_costs
from keras_dp.reporting.cli import main

DELTA = ["--delta", "1e-5"]
JSON = ["--format", "json"]
SAMPLING = PoissonSampling(0.01, drawn_by_library=True)
STEP = [GaussianSum("gradients", 1.0, 4.0)]
OPEN = ["--open", "all", "--epsilon", "3", *DELTA]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        for name in ("first", "7"):
            with ledger.start_run(name) as run:
                run.record(SAMPLING, STEP, 100)
    return path


@pytest.fixture
def shell(path, capsys):
    """Returns what a command prints; it must end with `code`."""

    def run(command, *options, code=0):
        found = main([command, str(path), *map(str, options)])
        out, err = capsys.readouterr()
        assert found == code, err
        if code:
            assert out == ""
            assert re.fullmatch(r"keras-dp: [^\n]+\n", err)
            return err
        assert err == ""
        return out.rstrip("\n")

    return run


def flat(text):
    return " ".join(text.split())


def pem(key, password=None):
    encryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption,
    )


class TestRuns:
    def test_prints_the_running_total(self, shell, path) -> None:
        out = shell("runs", *DELTA, "--units", 2)

        with PrivacyLedger.open(path, mode="r") as ledger:
            costs = run_costs(ledger, delta=1e-5, units=2)
        shown = re.findall(r"^ +\d+  .* ([\d.]+) +([\d.]+)$", out, re.M)
        assert len(shown) == 2
        for cost, (alone, total) in zip(costs, shown, strict=True):
            assert 0 <= float(alone) - cost.epsilon < 1.1e-4
            assert 0 <= float(total) - cost.total_epsilon < 1.1e-4


class TestBudget:
    def test_says_that_there_is_none(self, shell) -> None:
        assert "No accounts" in shell("budget")
        assert json.loads(shell("budget", *JSON)) == {"accounts": []}

    def test_opens_one_with_an_order(self, tmp_path, capsys) -> None:
        path = str(tmp_path / "new.ledger")
        PrivacyLedger.open(path, dataset="d").close()

        code = main(
            [
                *("budget", path, "--open", "part"),
                *("--epsilon", "2", "--delta", "5e-6", "--order", "9"),
                *("--neighbours", "add_or_remove_one"),
            ]
        )

        assert code == 0
        assert "part" in flat(capsys.readouterr().out)
        with PrivacyLedger.open(path, mode="r") as ledger:
            assert account_states(ledger)[0].budget.order == 9

    @pytest.mark.parametrize(
        "options",
        [
            ["--epsilon", "3"],
            ["--open", "all", *DELTA],
            ["--open", "all", "--epsilon", "3"],
            [*OPEN, "--order", "1"],
            [*OPEN[:3], "0.001", *DELTA],  # The rounds that are held cost more.
        ],
        ids=" ".join,
    )
    def test_that_cannot_be_opened_is_2(self, options, shell, path) -> None:
        before = path.read_bytes()

        message = shell("budget", *options, code=2)

        assert "Received" in message
        assert path.read_bytes() == before


class TestTheDelta:
    @pytest.mark.parametrize("command", ["report", "explain", "runs"])
    def test_is_that_of_the_plan(self, shell, path, command) -> None:
        assert "`--delta` must be given" in shell(command, code=2)

        with PrivacyLedger.open(path) as ledger:
            for delta in (1e-6, 1e-5):
                with ledger.start_run("planned") as run:
                    run.plan([(Round(SAMPLING, tuple(STEP)), 1)], delta=delta)

        assert shell(command) == shell(command, "--delta", "1e-6")
        assert shell(command) != shell(command, "--delta", "1e-5")

    def test_is_that_of_an_account(self, shell) -> None:
        shell("budget", *OPEN)

        assert shell("runs") == shell("runs", *DELTA)


class TestSeals:
    """A certificate, checked later."""

    @pytest.fixture
    def certificate(self, tmp_path):
        return tmp_path / "certificate.json"

    @pytest.fixture
    def key(self, tmp_path):
        key = ed25519.Ed25519PrivateKey.generate()
        (tmp_path / "key.pem").write_bytes(pem(key))
        return key

    def grow(self, path) -> None:
        with (
            PrivacyLedger.open(path) as ledger,
            ledger.start_run("later") as run,
        ):
            run.record(SAMPLING, STEP, 50)

    def test_covers_the_ledger_and_one_that_has_grown(
        self, shell, path, certificate
    ) -> None:
        out = shell("seal", *DELTA, "--out", certificate, "--note", "June")
        same = shell("verify", "--against", certificate)
        self.grow(path)
        grown = shell("verify", "--against", certificate)

        content = json.loads(certificate.read_text())
        assert content["seal_hash"] in out
        assert "Theorem: composed as if fixed in advance" in out
        assert "200 rounds in 2 runs of the data set clinic" in out
        assert "holds the rounds that were certified, and no more" in same
        assert "extends what was certified: 50 rounds follow" in grown
        assert "Nobody signed" in grown
        assert "Seals, before which no row changes" in shell("report", *DELTA)

    @pytest.mark.parametrize(
        ("edit", "options", "code", "message"),
        [
            (lambda text: "{}", (), 3, "not a certificate"),
            (lambda text: "\xff", (), 3, "not a certificate"),
            # A reader that takes the first of two fields would see another.
            (
                lambda text: text.replace("{", '{"epsilon": 0.0001,', 1),
                (),
                3,
                "each field once",
            ),
            (str, ("--public-key", "ab"), 4, "not signed"),
            (
                lambda text: text.replace(
                    '"signature": ""', '"signature": "00\\u001b[2K\\u202e"'
                ),
                ("--public-key", "ab"),
                4,
                "signed by the key ab",
            ),
        ],
    )
    def test_that_is_not_as_it_was_written_is_refused(
        self, edit, options, code, message, shell, certificate
    ) -> None:
        shell("seal", *DELTA, "--out", certificate)
        text = edit(certificate.read_text("utf-8"))
        certificate.write_text(text, "latin-1")

        err = shell("verify", "--against", certificate, *options, code=code)

        assert message in err
        assert err.rstrip("\n").isprintable()

    def test_without_a_signature_prints_what_the_ledger_says(
        self, shell, certificate
    ) -> None:
        """Whoever edits a certificate cannot make `verify` say it."""
        shell("seal", *DELTA, "--out", certificate)
        said = shell("verify", "--against", certificate)
        content = json.loads(certificate.read_text())
        content |= {"theorem": "perfect\x1b[2K\u202e", "issued": 10**18}
        certificate.write_text(json.dumps(content))

        assert shell("verify", "--against", certificate) == said
        assert "perfect" not in said
        assert "composed as if fixed in advance" in said

    def test_is_signed(self, shell, certificate, key, tmp_path) -> None:
        public = key.public_key().public_bytes_raw().hex()
        other = ed25519.Ed25519PrivateKey.generate().public_key()
        options = ["--against", certificate, "--public-key"]

        out = shell(
            *("seal", *DELTA, "--out", certificate),
            *("--key", tmp_path / "key.pem"),
        )

        assert public in out
        asked = shell("verify", *options, public.upper())
        assert f"signed by the key {public}, as demanded" in flat(asked)
        assert "demand one" in flat(shell("verify", *options[:2]))
        shell("verify", *options, other.public_bytes_raw().hex(), code=4)
        text = certificate.read_text().replace('"rounds": 200', '"rounds": 9')
        certificate.write_text(text)
        shell("verify", *options, public, code=4)

    @pytest.mark.parametrize(
        ("content", "code"),
        [(b"none", 2), (None, 3), ("password", 2), ("rsa", 2)],
    )
    def test_without_a_key_nothing_is_sealed(
        self, content, code, shell, path, certificate, tmp_path
    ) -> None:
        if content == "password":
            key = ed25519.Ed25519PrivateKey.generate()
            content = pem(key, password=b"x")
        elif content == "rsa":
            content = pem(rsa.generate_private_key(65537, 2048))
        if content is not None:
            (tmp_path / "key.pem").write_bytes(content)
        before = path.read_bytes()

        shell(
            *("seal", *DELTA, "--out", certificate),
            *("--key", tmp_path / "key.pem"),
            code=code,
        )

        assert path.read_bytes() == before
        assert not certificate.exists()

    def test_never_replaces_a_file(self, shell, path, certificate) -> None:
        certificate.write_text("mine")
        before = path.read_bytes()

        assert "Nothing was sealed" in shell(
            "seal", *DELTA, "--out", certificate, code=1
        )
        assert (certificate.read_text(), path.read_bytes()) == ("mine", before)
