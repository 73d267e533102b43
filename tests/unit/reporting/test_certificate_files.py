"""Certificates inside exported models, and models that are not the sealed."""

import shutil
import zipfile

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from keras_dp.errors import (
    LedgerFormatError,
    LedgerIntegrityError,
    OutputError,
)
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger
from keras_dp.reporting import certificate_files
from keras_dp.reporting.certificate_files import (
    certify_model,
    check_model,
    read_certificate,
)
from keras_dp.reporting.cli import main

DELTA = 1e-5
KINDS = ["folder", "m.keras", "m.tflite", "associated.tflite"]


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as opened:
        with opened.start_run("training") as run:
            run.record(PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)], 9)
        yield opened


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    """A model as its format lays it out; no framework is needed for that."""
    path = tmp_path / request.param
    if request.param == "folder":
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_bytes(b"graph")
        (path / "variables/variables.data-00000-of-00001").write_bytes(b"w")
        return path
    if path.suffix == ".tflite":
        path.write_bytes(b"TFL3" * 100)
    if path.name != "m.tflite":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("labels.txt", "yes\nno")
    return path


def change(model):
    """Puts other weights into a model."""
    if model.is_dir():
        file = model / "variables/variables.data-00000-of-00001"
        file.write_bytes(b"v")
    elif model.suffix == ".keras":
        with (
            pytest.warns(UserWarning, match="Duplicate name"),
            zipfile.ZipFile(model, "a") as archive,
        ):
            archive.writestr("labels.txt", "no\nyes")
    else:
        model.write_bytes(model.read_bytes().replace(b"TFL3", b"TFL4", 1))


class TestAModel:
    def test_holds_the_certificate_of_its_ledger(self, ledger, model) -> None:
        made = certify_model(model, ledger, delta=DELTA, note="June")

        found = read_certificate(model)
        assert found == made
        assert found.rounds == 9
        assert check_model(model, found.check(ledger), ledger)
        assert ledger.seals[0].statement.note.startswith("June model sha256:")

    def test_that_was_copied_is_the_same(self, ledger, model, tmp_path) -> None:
        made = certify_model(model, ledger, delta=DELTA)
        copy = tmp_path / f"copy{model.suffix}"
        shutil.copytree(model, copy) if model.is_dir() else shutil.copy(
            model, copy
        )
        assert check_model(copy, made, ledger)

    def test_with_other_weights_is_noticed(self, ledger, model) -> None:
        made = certify_model(model, ledger, delta=DELTA)
        change(model)
        with pytest.raises(LedgerIntegrityError, match="is not the one"):
            check_model(model, made, ledger)

    def test_with_one_more_file_is_noticed(self, ledger, model) -> None:
        made = certify_model(model, ledger, delta=DELTA)
        if model.is_dir():
            (model / "keras_dp_privacy.txt").write_text("epsilon <= 0")
        else:
            with zipfile.ZipFile(model, "a") as archive:
                archive.writestr("other.txt", "epsilon <= 0")
        with pytest.raises(LedgerIntegrityError, match="is not the one"):
            check_model(model, made, ledger)

    def test_says_the_guarantee_as_text(self, ledger, model) -> None:
        made = certify_model(model, ledger, delta=DELTA)
        if model.is_dir():
            text = (model / "assets.extra/keras_dp_privacy.txt").read_text()
        else:
            with zipfile.ZipFile(model) as archive:
                text = archive.read("keras_dp_privacy.txt").decode()
        assert text.startswith(made.sentences[0])
        assert "keras-dp verify" in text

    def test_gets_one_statement(self, ledger, model) -> None:
        certify_model(model, ledger, delta=DELTA)
        with pytest.raises(ValueError, match="Export the model anew"):
            certify_model(model, ledger, delta=DELTA)
        assert len(ledger.seals) == 1


class TestWhatIsRefused:
    @pytest.mark.parametrize("name", ["m.onnx", "missing.keras", "empty"])
    def test_another_format(self, ledger, tmp_path, name) -> None:
        (tmp_path / "m.onnx").write_bytes(b"graph")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match="`model` must be the folder"):
            certify_model(tmp_path / name, ledger, delta=DELTA)
        assert not ledger.seals

    def test_a_key_of_another_kind(self, ledger, model) -> None:
        with pytest.raises(ValueError, match="`private_key`"):
            certify_model(model, ledger, delta=DELTA, private_key=b"key")
        assert not ledger.seals

    def test_a_model_without_a_certificate(self, tmp_path) -> None:
        path = tmp_path / "m.keras"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("labels.txt", "yes")
        with pytest.raises(LedgerFormatError, match="does not hold"):
            read_certificate(path)
        with pytest.raises(OSError, match=r"assets\.extra"):
            read_certificate(tmp_path)

    def test_a_disk_that_is_full(self, ledger, tmp_path, monkeypatch) -> None:
        path = tmp_path / "m.tflite"
        path.write_bytes(b"TFL3")

        def full(*_):
            raise OSError("No space left on device")

        monkeypatch.setattr(certificate_files, "_put", full)
        with pytest.raises(OutputError, match="sealed in row"):
            certify_model(path, ledger, delta=DELTA)


def test_in_a_shell(ledger, tmp_path, capsys) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key.pem").write_bytes(pem)
    path, model = str(tmp_path / "clinic.ledger"), tmp_path / "m.tflite"
    model.write_bytes(b"TFL3" * 100)

    seal = ["seal", path, "--delta", "1e-5", "--model", str(model)]
    sign = ["--out", f"{tmp_path}/june.json", "--key", f"{tmp_path}/key.pem"]
    assert main([*seal, *sign]) == 0
    public = read_certificate(tmp_path / "june.json").public_key
    verify = ["verify", path, "--against", str(model), "--public-key", public]
    assert main(verify) == 0
    assert "The files of the model are those" in capsys.readouterr().out

    change(model)
    assert main(verify) == 4
    assert "is not the one that was sealed" in capsys.readouterr().err
    again = ["--out", f"{tmp_path}/again.json"]
    assert main([*seal, *again]) == 2
    assert not (tmp_path / "again.json").exists()
