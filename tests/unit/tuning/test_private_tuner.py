"""A script of KerasTuner, changed in three lines."""

import difflib
import os
import re
import sys
from unittest import mock

import keras
import pytest

import keras_dp
from keras_dp.ledger import PrivacyLedger, TruncatedNegativeBinomial
from keras_dp.tuning import PrivateTuner
from keras_dp.tuning.trials import Trials
from tests.unit.tuning.searches import LAW, build, data

keras_tuner = pytest.importorskip("keras_tuner")

PLAIN = """
import keras_tuner

tuner = keras_tuner.RandomSearch(
    build_model,
    objective="val_accuracy",
    max_trials=3,
)
tuner.search(x, y, epochs=2, batch_size=50, validation_data=public)
model = tuner.get_best_models()[0]
best = tuner.get_best_hyperparameters()[0]
"""
PRIVATE = """
import keras_dp

tuner = keras_dp.tuning.PrivateTuner(
    build_model,
    objective="val_accuracy",
    law=law, target_epsilon=3.0, ledger=ledger,
)
tuner.search(x, y, epochs=2, batch_size=50, validation_data=public)
model = tuner.get_best_models()[0]
best = tuner.get_best_hyperparameters()[0]
"""


def build_model(hp):
    """Asks for `more` only where there is a second layer."""
    layers = [keras.layers.Dense(hp.Int("units", 2, 8), activation="tanh")]
    if hp.Choice("kind", ["one", "two"]) == "two":
        more = hp.Choice("more", [2, 3])
        layers.append(keras.layers.Dense(more, activation="tanh"))
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(1)]
    )
    rate = hp.Float("rate", 0.1, 10.0, sampling="log")
    model.compile(
        keras.optimizers.SGD(rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
    )
    return model


def tuner_of(hypermodel=build_model, objective="val_accuracy", **changes):
    return PrivateTuner(
        hypermodel,
        objective,
        law=LAW,
        target_epsilon=3.0,
        ledger=PrivacyLedger.in_memory(dataset="doc"),
        **changes,
    )


def test_three_lines_change() -> None:
    changes = list(
        difflib.unified_diff(PLAIN.splitlines(), PRIVATE.splitlines(), n=0)
    )

    assert sum(line.startswith("+") for line in changes[2:]) == 3


@pytest.mark.full
def test_the_script_runs_and_leaves_no_file(
    monkeypatch, tmp_path, noise_is_given
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        TruncatedNegativeBinomial, "trials", lambda self, uniform: 2
    )
    x, y = data()
    names = {
        "build_model": build_model,
        "x": x,
        "y": y,
        "public": data(seed=1),
        "law": LAW,
        "ledger": PrivacyLedger.in_memory(dataset="doc"),
    }

    exec(PRIVATE, names)

    assert isinstance(names["model"], keras.Model)
    assert {"units", "kind", "rate"} <= set(names["best"].values)
    assert ("more" in names["best"].values) == (
        names["best"].get("kind") == "two"
    )
    assert os.listdir(tmp_path) == []
    assert len(names["ledger"]) == 1


def test_a_tuner_keeps_nothing_of_other_trials(
    monkeypatch, noise_is_given
) -> None:
    """How many models it knows would tell how many trials there were."""
    monkeypatch.setattr(
        TruncatedNegativeBinomial, "trials", lambda self, uniform: 3
    )
    kept = []  # Else they might be gone by chance.

    def run(self, settings, noise_multiplier):
        kept.append(self.build(settings))
        return kept[-1], 1.0

    monkeypatch.setattr(Trials, "run", run)
    tuner = tuner_of()

    tuner.search(*data(), batch_size=50, validation_data=data(), verbose=False)

    assert len(kept) > 3
    assert [*tuner._values] == tuner.get_best_models()


class TestHyperparameters:
    def test_are_drawn_from_the_ranges_that_the_model_names(self) -> None:
        tuner = tuner_of()

        drawn = [
            {name: prior.value(k / 16) for name, prior in tuner._space.items()}
            for k in range(16)
        ]

        assert {each["kind"] for each in drawn} == {"one", "two"}
        assert {each["units"] for each in drawn} == set(range(2, 9))
        assert all(0.1 <= each["rate"] <= 10 for each in drawn)

    def test_that_only_some_models_ask_for_are_drawn_then(self) -> None:
        tuner = tuner_of()

        models = [
            tuner._built({"units": 2, "kind": "two", "rate": 1.0})
            for _ in range(20)
        ]

        assert {tuner._values[each]["more"] for each in models} == {2, 3}
        assert all(
            each.layers[1].units == tuner._values[each]["more"]
            for each in models
        )

    def test_of_the_batch_set_that_of_the_training(
        self, noise_is_given
    ) -> None:
        def of_batches(hp):
            hp.Choice("batch_size", [20, 50])
            return build_model(hp)

        tuner = tuner_of(of_batches, score=lambda model: 0.0, objective=None)
        asked = []
        original = Trials.plan

        def plan(self, batch_size, epochs, noise_multiplier):
            asked.append(batch_size)
            return original(self, batch_size, epochs, noise_multiplier)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Trials, "plan", plan)
            patched.setattr(
                TruncatedNegativeBinomial, "trials", lambda self, uniform: 0
            )
            patched.setattr(
                "keras_dp.tuning.private_search.rehearse",
                lambda trials, settings: None,
            )
            tuner.search(*data())

        assert set(asked) == {20, 50}
        assert tuner.get_best_models() == []

    def test_of_the_batch_must_be_counted(self) -> None:
        def of_batches(hp):
            hp.Int("batch_size", 20, 50)
            return build_model(hp)

        with pytest.raises(ValueError, match=r"hp\.Choice"):
            tuner_of(of_batches)


class TestBadInput:
    @pytest.mark.parametrize(
        "kind", ["BayesianOptimization", "Hyperband", "RandomSearch"]
    )
    def test_a_tuner_of_results_is_refused(
        self, kind, tmp_path, monkeypatch
    ) -> None:
        # One of them asks for scikit-learn. No trial runs here.
        of_bayes = keras_tuner.oracles.BayesianOptimizationOracle
        module = sys.modules[of_bayes.__module__]
        for name in ("sklearn", "scipy"):
            monkeypatch.setattr(module, name, mock.MagicMock())
        monkeypatch.setattr(of_bayes, "_make_gpr", lambda self: None)
        other = getattr(keras_tuner, kind)(
            build_model, objective="val_accuracy", directory=tmp_path
        )

        for given in (other, other.oracle):
            with pytest.raises(TypeError, match="Bayesian"):
                tuner_of(given)

    def test_a_fit_of_its_own_is_refused(self) -> None:
        class Fits(keras_tuner.HyperModel):
            def build(self, hp):
                return build_model(hp)

            def fit(self, hp, model, *args, **options):
                return model.fit(*args, **options)

        with pytest.raises(TypeError, match="`fit` of its own"):
            tuner_of(Fits())

    def test_a_metric_of_the_training_data_is_refused(self) -> None:
        with pytest.raises(ValueError, match="val_"):
            tuner_of(objective="accuracy")

    def test_a_score_and_an_objective_are_refused(self) -> None:
        with pytest.raises(ValueError, match="Exactly one"):
            tuner_of(score=lambda model: 0.0)

    def test_callbacks_are_refused(self) -> None:
        with pytest.raises(ValueError, match="`callbacks` must be None"):
            tuner_of().search(
                *data(),
                validation_data=data(),
                callbacks=[keras.callbacks.EarlyStopping()],
            )

    def test_an_objective_needs_public_data(self) -> None:
        with pytest.raises(ValueError, match="`validation_data` must"):
            tuner_of().search(*data())

    def test_the_second_best_model_is_not_released(self) -> None:
        with pytest.raises(ValueError, match="must be 1"):
            tuner_of().get_best_models(2)


# KerasTuner 1.4.8 calls `threading.currentThread().getName()`.
@pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:getName:DeprecationWarning")
class TestAnOrdinaryTuner:
    @pytest.mark.full
    def test_warns_once_of_what_all_trials_cost(
        self, tmp_path, caplog, monkeypatch
    ) -> None:
        ledger = PrivacyLedger.in_memory(dataset="doc")
        query = keras_dp.GaussianAverageQuery(
            1.0, noise_multiplier=2.0, denominator=50
        )

        def private(hp):
            model = keras_dp.PrivateModel(build({}), self_check_examples=0)
            model.compile(
                keras_dp.DPSGD(
                    hp.Float("rate", 0.1, 1.0), query=query, ledger=ledger
                ),
                loss=keras.losses.BinaryCrossentropy(from_logits=True),
            )
            return model

        tuner = keras_tuner.RandomSearch(
            private, objective="val_loss", max_trials=3, directory=tmp_path
        )
        # It asks for TensorBoard, which is not installed, and not used here.
        monkeypatch.setattr(
            tuner, "_configure_tensorboard_dir", lambda *arguments: None
        )
        samples = keras_dp.PoissonBatches(data(), sampling_probability=0.25)

        tuner.search(samples, epochs=1, validation_data=data(), verbose=0)

        said = [
            each.getMessage()
            for each in caplog.records
            if "PrivateSearch" in each.getMessage()
        ]
        assert len(said) == 1
        assert "all 3 trials" in said[0]
        seen, one, search = (
            float(each)
            for each in re.findall(r"(?:epsilon|alone|cost) (\d\.\d+)", said[0])
        )
        assert one < search < seen
