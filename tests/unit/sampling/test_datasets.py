"""A data set is read once, into records that can be drawn in any order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.sampling import PoissonBatches, UserBatches
from keras_dp.sampling.datasets import FiniteDataset

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20)


def slices(data=(X, Y)):
    return tf.data.Dataset.from_tensor_slices(data)


class Batches(keras.utils.PyDataset):
    def __init__(self, count=4, **options):
        super().__init__(**options)
        self.count = count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        return X[rows], Y[rows]


def generated(shapes, batch=None):
    spec = tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes)
    element = tuple(
        np.zeros([batch or 2 if size is None else size for size in shape])
        for shape in shapes
    )
    return tf.data.Dataset.from_generator(
        lambda: iter([element] * 4), output_signature=spec
    )


class TestTheRecords:
    @pytest.mark.parametrize(
        "dataset",
        [
            slices,
            lambda: slices().batch(8),
            lambda: slices().batch(5, drop_remainder=True).prefetch(1),
            lambda: slices().map(lambda x, y: (x, y)).padded_batch(6).cache(),
            lambda: slices().batch(8).unbatch(),
            lambda: slices().batch(7, num_parallel_calls=2),
            Batches,
        ],
    )
    def test_are_those_of_the_data_set(self, dataset) -> None:
        x, y = FiniteDataset(dataset()).stored(verbose=False)

        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(y, Y)

    def test_are_drawn(self) -> None:
        batches = PoissonBatches.from_dataset(
            slices().batch(8), sampling_probability=1, seed=3, verbose=False
        )

        (x, y), mask, _ = next(iter(batches))
        assert batches.population_size == 20
        np.testing.assert_array_equal(x[mask], X[y[mask]])

    def test_may_be_text(self) -> None:
        words = np.array(["a", "bcd", "é"])

        (stored,) = FiniteDataset(slices((words,)).batch(2)).stored(
            verbose=False
        )

        assert stored.tolist() == [b"a", b"bcd", "é".encode()]

    def test_are_counted_and_weighed(self, capsys) -> None:
        FiniteDataset(slices().batch(8)).stored()

        assert (
            "Stored 20 records of float32[3], int64[]: 0.0 MB in memory."
            in (capsys.readouterr().out)
        )


class TestTheUnit:
    @pytest.mark.parametrize(
        ("dataset", "batched"),
        [
            (slices(), False),
            (slices(X), False),
            (slices().batch(4), True),
            (slices().batch(4, drop_remainder=True).shuffle(3), True),
            (slices().batch(4).unbatch().take(3), False),
            (generated([[None, 3], []]), False),
            (generated([[2], [3]]), False),
        ],
    )
    def test_is_read_off_the_data_set(self, dataset, batched) -> None:
        assert FiniteDataset(dataset).is_batched is batched

    @pytest.mark.parametrize(
        "dataset",
        [
            generated([[None, 3], [None]]),  # Sequences of tokens, or batches.
            generated([[4, 3], [4]]),
            tf.data.Dataset.from_tensors((X, Y)),
        ],
    )
    def test_is_not_guessed(self, dataset) -> None:
        with pytest.raises(ValueError, match="`batched` must say"):
            FiniteDataset(dataset).stored()

    def test_is_what_the_caller_says(self) -> None:
        dataset = generated([[None, 3], [None]])

        as_batches = FiniteDataset(dataset, batched=True).stored(verbose=False)
        as_records = FiniteDataset(dataset, batched=False).stored(verbose=False)

        assert as_batches[0].shape == (8, 3)
        assert as_records[0].shape == (4, 2, 3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            (slices().repeat(), "must be finite"),
            (slices().repeat(2), "each record once"),
            (
                keras.utils.timeseries_dataset_from_array(
                    np.arange(30.0), np.arange(30.0), 3, batch_size=4
                ),
                "sliding_window_view",
            ),
            (slices().take(0), "at least one record"),
            (
                tf.data.Dataset.range(1, 4).map(lambda n: tf.zeros([n])),
                "one shape and dtype",
            ),
            (slices(tf.ragged.constant([[1.0], [2.0, 3.0]])), "to_tensor"),
            (Batches(None), "must be finite"),
        ],
    )
    def test_say_what_to_do(self, dataset, message) -> None:
        with pytest.raises(ValueError, match=message):
            FiniteDataset(dataset).stored(verbose=False)

    @pytest.mark.parametrize("dataset", [slices(), Batches()])
    def test_of_a_sampler_name_the_function(self, dataset) -> None:
        with pytest.raises(TypeError, match=r"PoissonBatches\.from_dataset"):
            PoissonBatches(dataset, sampling_probability=0.1)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({}, "argument: 'sampling_probability'"),
            ({"sampling_probability": 0.1, "sed": 3}, "Did you mean `seed`"),
        ],
    )
    def test_of_arguments_come_before_any_record(self, options, said) -> None:
        def unread():
            raise AssertionError
            yield

        spec = tf.TensorSpec([3])
        dataset = tf.data.Dataset.from_generator(unread, output_signature=spec)

        with pytest.raises(TypeError, match=said):
            PoissonBatches.from_dataset(dataset, batched=False, **options)

    def test_of_what_is_no_data_set(self) -> None:
        with pytest.raises(TypeError, match=r"tf\.data\.Dataset"):
            PoissonBatches.from_dataset((X, Y), sampling_probability=0.1)


class TestIds:
    """Ids that come beside a data set are in the order of its records."""

    @pytest.mark.parametrize(
        "mixed",
        [
            lambda: slices().shuffle(20),
            lambda: slices().shuffle(20).batch(5).prefetch(1),
            lambda: (
                slices()
                .batch(5)
                .interleave(lambda *each: slices(each), cycle_length=4)
            ),
            lambda: tf.data.Dataset.sample_from_datasets(
                [slices().take(10), slices().skip(10)]
            ),
        ],
    )
    def test_are_refused_where_records_are_mixed(self, mixed) -> None:
        with pytest.raises(ValueError, match="`user_ids` must"):
            UserBatches.from_dataset(
                mixed(),
                user_ids=Y // 4,
                sampling_probability=0.5,
                records_per_user=4,
            )

    @pytest.mark.parametrize(
        "ordered", [slices, lambda: slices().batch(5).prefetch(1), Batches]
    )
    def test_are_taken_where_they_are_not(self, ordered) -> None:
        users = UserBatches.from_dataset(
            ordered(),
            user_ids=Y // 4,
            sampling_probability=0.5,
            records_per_user=4,
            verbose=False,
        )

        assert users.population_size == 5
