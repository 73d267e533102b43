"""All features of a table in one round."""

import dataclasses
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.accountants import AnalyticGaussian
from keras_dp.experimental.feature_space import FeatureSpace
from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import (
    PCA,
    Discretization,
    IntegerLookup,
    Normalization,
    StringLookup,
)
from tests.adapters import adapted, without_noise
from tests.waiting import HUNG_SECONDS

AGE = Normalization((0, 100), 1.0)
HOURS = Discretization((0, 80), 4, 1.0)
TOWN = StringLookup(1.0, threshold_delta=1e-8)
RANK = IntegerLookup(1.0, threshold_delta=1e-8)
feature = keras.utils.FeatureSpace.feature


def table(records=200):
    rng = np.random.default_rng(1)
    return {
        "age": rng.uniform(20, 60, records),
        "hours": rng.uniform(0, 80, records),
        "town": rng.choice(["Kiel", "Bonn", "Ulm"], records),
        "rank": rng.integers(0, 5, records),
        "gain": rng.normal(size=records),
    }


def theirs(data, **options):
    space = keras.utils.FeatureSpace(
        {
            "age": "float_normalized",
            "hours": keras.utils.FeatureSpace.float_discretized(4),
            "town": "string_hashed",
            "rank": "integer_hashed",
            "gain": "float",
        },
        **options,
    )
    space.adapt(data)
    return space


def adapter(**options):
    return FeatureSpace(
        {
            "age": AGE,
            "hours": HOURS,
            "town": "string_hashed",
            "rank": "integer_hashed",
            "gain": "float",
        },
        **{"noise_multiplier": 3.0, **options},
    )


def served(space, data, folder):
    """Returns what the saved space answers where only Keras is imported."""
    path = folder / "space.keras"
    space.save(path)
    np.savez(folder / "data.npz", **data)
    script = (
        "import sys, keras, numpy as np\n"
        f"space = keras.saving.load_model({str(path)!r})\n"
        f"data = dict(np.load({str(folder / 'data.npz')!r}))\n"
        f"np.save({str(folder / 'out.npy')!r}, np.asarray(space(data)))\n"
        "assert 'keras_dp' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, timeout=HUNG_SECONDS)
    return np.load(folder / "out.npy")


class TestWithoutNoise:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"output_mode": "dict"},
            {"crosses": [("hours", "rank")], "crossing_dim": 8},
            {"hashing_dim": 7},
        ],
    )
    def test_it_is_what_keras_computes(self, options, monkeypatch) -> None:
        without_noise(monkeypatch)
        data = table()
        # Away from the boundaries, of which Keras only has rough ones.
        data["hours"] = np.tile([5.0, 25.0, 45.0, 75.0], 50)

        got = adapted(adapter(**options), data)(data)

        expected = theirs(data, **options)(data)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3),
            got,
            expected,
        )

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: tf.data.Dataset.from_tensor_slices(x).batch(32),
            lambda x: tf.data.Dataset.from_tensor_slices(x),
            lambda x: tf.data.Dataset.from_tensor_slices((x, x["age"])),
            lambda x: {name: each[:, np.newaxis] for name, each in x.items()},
        ],
        ids=["batches", "records", "pairs", "columns"],
    )
    def test_data_of_every_kind(self, make, monkeypatch) -> None:
        without_noise(monkeypatch)
        data = table()

        got = adapted(adapter(), make(data))

        np.testing.assert_allclose(
            got(data), adapted(adapter(), data)(data), atol=1e-6
        )

    def test_bins_as_numbers(self, monkeypatch) -> None:
        without_noise(monkeypatch)
        spec = FeatureSpace(
            {"hours": feature("float32", HOURS, "int")},
            2.0,
            output_mode="dict",
        )

        space = adapted(spec, {"hours": np.arange(80.0)})

        bins = space({"hours": [0.5, 21.0, 41.0, 79.0]})["hours"]
        assert np.ravel(bins).tolist() == [0, 1, 2, 3]


class TestVocabularies:
    def adapter(self, **options):
        return FeatureSpace(
            {"town": TOWN, "rank": RANK, "age": AGE},
            **{"noise_multiplier": 0.5, **options},
        )

    @pytest.mark.parametrize("odd", [b"Kiel\0", b"\xff", b""])
    def test_no_text_of_a_data_set_is_an_error(self, odd, monkeypatch) -> None:
        without_noise(monkeypatch)
        towns = np.array([b"Kiel", b"Bonn"] * 100 + [odd], object)
        data = tf.data.Dataset.from_tensor_slices({"town": towns}).batch(32)

        space = adapted(FeatureSpace({"town": TOWN}, 0.5), data)

        layer = space.preprocessors["town"]
        assert sorted(layer.get_vocabulary()) == ["Bonn", "Kiel", "[UNK]"]

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: x,
            lambda x: {name: each.tolist() for name, each in x.items()},
            lambda x: tf.data.Dataset.from_tensor_slices(x).batch(32),
        ],
        ids=["arrays", "lists", "batches"],
    )
    @pytest.mark.parametrize("crosses", [None, [("town", "rank")]])
    def test_it_is_what_keras_computes(
        self, make, crosses, monkeypatch
    ) -> None:
        without_noise(monkeypatch)
        # Orders that are clear, so that both find the same.
        data = {
            "town": np.repeat(["Kiel", "Bonn", "Ulm"], [90, 70, 40]),
            "rank": np.repeat([7, 2, 9], [120, 50, 30]),
            "age": table()["age"],
        }
        theirs = keras.utils.FeatureSpace(
            {
                "town": "string_categorical",
                "rank": "integer_categorical",
                "age": "float_normalized",
            },
            crosses=crosses,
        )
        theirs.adapt(data)

        got = adapted(self.adapter(crosses=crosses), make(data))

        np.testing.assert_allclose(got(data), theirs(data), atol=1e-3)

    def test_a_town_of_one_person_is_not_in_it(self) -> None:
        data = {
            "town": np.array(["Kiel"] * 200 + ["Celle"]),
            "rank": np.full(201, 7),
            "age": np.full(201, 50.0),
        }

        space = adapted(self.adapter(noise_multiplier=5.0), data)

        words = space.preprocessors["town"].get_vocabulary()
        assert [str(each) for each in words] == ["[UNK]", "Kiel"]

    def test_their_threshold_is_for_the_noise_they_have(self) -> None:
        round_ = self.adapter(noise_multiplier=4.0).planned_round()
        (town,) = dataclasses.replace(
            TOWN, noise_multiplier=round_.queries[0].noise_stddev
        ).events()

        assert round_.queries[0] == dataclasses.replace(
            town, name="preprocessing/town/vocabulary"
        )
        alone = Normalization((0, 1), 4.0).planned_round()
        price = AnalyticGaussian().epsilon
        assert price([(round_, 1)], delta=1e-6) == pytest.approx(
            price([(alone, 1)], delta=1e-6 - 2e-8), rel=1e-3
        )

    @pytest.mark.standard
    def test_are_served_by_keras_alone(self, tmp_path) -> None:
        data = {name: table()[name] for name in ("town", "rank", "age")}
        space = adapted(self.adapter(), data)

        answers = served(space, data, tmp_path)

        np.testing.assert_allclose(answers, space(data), rtol=1e-6)


class TestTheNoise:
    def test_of_equal_features_is_shared_equally(self) -> None:
        events = adapter(noise_multiplier=5.0).events()

        assert [event.name for event in events] == [
            "age/normalization",
            "hours/discretization",
        ]
        for event in events:
            assert event.noise_stddev == pytest.approx(5 * math.sqrt(2))

    def test_is_shared_by_the_ratios_of_their_own(self) -> None:
        spec = FeatureSpace(
            {
                "a": Normalization((0, 1), 3.0),
                "b": Normalization((0, 1), 1.5),
                "c": Discretization((0, 1), 2, 6.0),
            },
            10.0,
        )
        a, b, c = (event.noise_stddev for event in spec.events())

        assert (a / b, c / a) == (pytest.approx(2.0), pytest.approx(2.0))
        assert a**-2 + b**-2 + c**-2 == pytest.approx(10**-2)

    def test_costs_what_one_release_costs(self) -> None:
        together = adapter(noise_multiplier=4.0).planned_round()
        alone = Normalization((0, 1), 4.0).planned_round()
        price = AnalyticGaussian().epsilon

        assert price([(together, 1)], delta=1e-6) == pytest.approx(
            price([(alone, 1)], delta=1e-6)
        )

    def test_is_added_to_every_feature(self, monkeypatch) -> None:
        data = table()
        space = adapted(adapter(noise_multiplier=20.0), data)
        without_noise(monkeypatch)
        exact = adapted(adapter(), data)

        for name, holds in (("age", "input_mean"), ("hours", "bin_boundaries")):
            noised, bare = (
                np.asarray(getattr(each.preprocessors[name], holds))
                for each in (space, exact)
            )
            assert np.all(noised != bare)


def test_it_trains_in_a_model() -> None:
    data = table()
    space = adapted(adapter(), data)
    outputs = keras.layers.Dense(1)(space.get_encoded_features())
    model = keras.Model(dict(space.get_inputs()), outputs)
    columns = {
        name: tf.cast(data[name][:, np.newaxis], symbol.dtype)
        for name, symbol in sorted(space.get_inputs().items())
    }

    np.testing.assert_allclose(
        model(columns), model.layers[-1](space(data)), rtol=1e-5
    )


@pytest.mark.standard
def test_it_is_served_by_keras_alone(tmp_path) -> None:
    data = table(20)
    space = adapted(adapter(crosses=[("hours", "rank")]), data)

    answers = served(space, data, tmp_path)

    np.testing.assert_allclose(answers, space(data), rtol=1e-6)


class TestRefuses:
    @pytest.mark.parametrize(
        ("features", "match"),
        [
            ({"a": AGE, "b": "float_normalized"}, r"preprocessing\.Normaliz"),
            ({"a": AGE, "b": "float_discretized"}, r"preprocessing\.Discret"),
            ({"a": AGE, "b": "string_categorical"}, r"preprocessing\.StringL"),
            ({"a": AGE, "b": "integer_categorical"}, r"preprocessing\.Integer"),
            (
                {"a": AGE, "b": keras.utils.FeatureSpace.float_normalized()},
                "holds no values",
            ),
            (
                {"a": AGE, "b": keras.utils.FeatureSpace.float_discretized(3)},
                "holds no values",
            ),
            (
                {"a": AGE, "b": keras.utils.FeatureSpace.string_categorical()},
                "holds no values",
            ),
            ({"a": AGE, "b": PCA(1, 1.0)}, "output mode"),
            ({"a": AGE, "b": "floats"}, "floats"),
            ({"a": "float"}, "must have an adapter"),
            ({}, "must have an adapter"),
        ],
    )
    def test_features(self, features, match) -> None:
        with pytest.raises(ValueError, match=match):
            FeatureSpace(features, 1.0)

    def test_features_with_public_values_are_fine(self) -> None:
        make = keras.utils.FeatureSpace
        words = keras.layers.StringLookup(vocabulary=["a", "b"])
        scales = keras.layers.Normalization(mean=0.0, variance=1.0)
        spec = FeatureSpace(
            {
                "age": AGE,
                "word": feature("string", words, "one_hot"),
                "scaled": feature("float32", scales, "float"),
                "bin": make.float_discretized(None, bin_boundaries=[0.0, 1.0]),
            },
            1.0,
        )

        assert len(spec.events()) == 1

    @pytest.mark.parametrize(
        "options",
        [
            {"noise_multiplier": 0.0},
            {"output_mode": "list"},
            {"crosses": [("hours", "height")]},
        ],
    )
    def test_arguments(self, options) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            adapter(**options)

    @pytest.mark.parametrize(
        ("data", "error", "match"),
        [
            ({"age": [1.0]}, ValueError, "'hours'"),
            (
                {"age": [1.0], "hours": np.array(["a"])},
                TypeError,
                "real numbers",
            ),
            (np.ones((3, 2)), TypeError, "must be a table"),
        ],
    )
    def test_data(self, data, error, match) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")

        with pytest.raises(error, match=match):
            adapter().adapt(data, ledger)

        assert len(ledger) == 0
