"""What `fit` iterates over holds what the sampler drew, and lets go of it."""

import contextlib
import gc
import itertools
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.sampling import PoissonBatches, ShuffledBatches
from keras_dp.sampling.record_source import aligned_empty
from keras_dp.training.data.batches import (
    Batches,
    _generated,
    as_tensor,
    gathered,
)
from keras_dp.training.data.data_adapter import DataAdapter
from tests.private_models import private_of
from tests.waiting import wait_until

SEED = 11
DTYPES = (
    "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16 ?".split()  # noqa: SIM905
)


def sampler(data=None, **options):
    data = np.arange(500.0) if data is None else data
    return PoissonBatches(data, sampling_probability=0.1, seed=SEED, **options)


def threads(kind="keras_dp"):
    return sum(each.name.startswith(kind) for each in threading.enumerate())


class Failing:
    """A source whose record cannot be read after some batches."""

    def __init__(self, batches):
        self.left = batches + 1  # Construction reads a record.

    def __len__(self):
        return 500

    def __getitem__(self, indices):
        self.left -= 1
        if self.left < 0:
            raise OSError("shard-7 is gone")
        return np.ones([len(indices), 3], np.float32), np.ones([len(indices)])


def private_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=50)
    private = private_of(model, query, seed=3)
    return private, private.optimizer.ledger


class TestBatches:
    @pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
    @pytest.mark.parametrize("shape", [(), (5,), (3, 0)])
    def test_are_those_of_the_sampler(self, dtype, shape):
        data = np.random.default_rng(1).integers(0, 2, (500, *shape))
        data = {"x": data.astype(dtype), "y": np.arange(500).astype("S3")}
        expected = iter(sampler(data, physical_batch_size=24))

        for step in itertools.islice(
            Batches(sampler(data, physical_batch_size=24)), 8
        ):
            records, real, last = next(expected)
            assert step.x["x"].dtype == tf.as_dtype(np.dtype(dtype))
            np.testing.assert_array_equal(step.x["x"], records["x"])
            np.testing.assert_array_equal(step.x["y"], records["y"])
            np.testing.assert_array_equal(step.mask, real)
            assert step.ends_sample is last

    def test_stay_what_they_are(self):
        """Memory that tensors share is not used again."""
        kept = list(itertools.islice(Batches(sampler()), 40))
        expected = itertools.islice(sampler(), 40)

        for step, batch in zip(kept, expected, strict=True):
            np.testing.assert_array_equal(step.x, batch.records)

    def test_of_two_iterators_are_streams_in_the_order_of_asking(self):
        ours, theirs = Batches(batches := sampler()), sampler()
        del batches
        pairs = [(iter(ours), iter(theirs)) for _ in range(2)]

        for mine, plain in reversed(pairs):
            np.testing.assert_array_equal(next(mine).x, next(plain).records)

    def test_are_taken_apart_into_inputs_and_targets(self):
        feed = DataAdapter(sampler(({"a": np.arange(500)}, np.arange(500) * 2)))

        batch = feed.batch_from(next(feed.physical_batches))

        np.testing.assert_array_equal(batch.x["a"] * 2, batch.y)
        assert batch.sample_weight is None
        assert batch.ends_sample is True


class TestGathered:
    @pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16", "S3"])
    @pytest.mark.parametrize("shape", [(), (5,), (3, 0)])
    def test_are_the_records_at_places_and_zeros(self, dtype, shape):
        data = np.random.default_rng(1).integers(0, 2, (500, *shape))
        data = data.astype(dtype)
        places = np.array([[7, -1], [0, 499]], np.int32)

        resident = Batches(sampler(data)).resident
        found = gathered(resident.leaves, tf.constant(places))[0]

        with_zeros = np.concatenate([data, np.zeros_like(data[:1])])
        np.testing.assert_array_equal(found, with_zeros[places])


class TestSamplesAhead:
    def test_are_of_one_pass_and_stay_until_they_are_taken(self):
        batches = Batches(ShuffledBatches(np.arange(10), batch_size=4))
        with contextlib.closing(batches):
            (first,) = batches.ahead(1)
            assert [each.pass_.number for each in batches.ahead(9)] == [0] * 3
            assert batches.take(2)[0] is first
            assert [each.pass_.number for each in batches.ahead(9)] == [0]
            batches.take(1)
            assert [each.pass_.number for each in batches.ahead(2)] == [1] * 2

    def test_of_several_batches_come_alone(self):
        """Else the rest of one would be lost where it follows others."""
        batches = Batches(sampler(physical_batch_size=50))
        taken = []
        with contextlib.closing(batches):
            while len(taken) < 40:  # About half of them fit into one.
                found = batches.ahead(9)
                fit = [len(sample.rows) == 1 for sample in found]
                assert all(fit) or len(found) == 1
                assert batches.take(len(found)) == found
                taken += found

        assert {len(sample.rows) for sample in taken} == {1, 2}


class TestTensors:
    @pytest.mark.parametrize("dtype", DTYPES[:-1])
    def test_share_the_memory_of_an_aligned_array(self, dtype):
        array = aligned_empty((7, 3), np.dtype(dtype))
        array[:] = 1

        tensor = as_tensor(array)
        array[2, 1] = 0

        assert tensor.numpy()[2, 1] == 0

    @pytest.mark.parametrize(
        "array",
        [
            aligned_empty((8, 3), np.dtype("f4"))[1:],
            aligned_empty((8, 3), np.dtype("f4")).T,
            np.zeros([0, 3]),
            np.zeros(3, ">f4"),
            np.zeros(3, bool),
            np.array(["a", "bc"]),
        ],
        ids=["not aligned", "strided", "empty", "big endian", "bool", "text"],
    )
    def test_of_other_arrays_are_copies(self, array):
        array[...] = "d" if array.dtype.kind == "U" else 1

        tensor = as_tensor(array)
        expected = array.copy()
        array[...] = "e" if array.dtype.kind == "U" else 0

        if array.dtype.kind == "U":
            expected = np.char.encode(expected)
        np.testing.assert_array_equal(tensor.numpy(), expected)

    def test_of_an_array_that_is_read_only_are_copies(self):
        array = aligned_empty((8, 3), np.dtype("f4"))
        array[:] = 1
        array.flags.writeable = False

        np.testing.assert_array_equal(as_tensor(array), array)


class TestFit:
    def test_shows_an_exception_of_the_data_and_records_what_it_released(self):
        private, ledger = private_model()
        batches = sampler(Failing(batches=5))

        with pytest.raises(OSError, match="shard-7 is gone"):
            private.fit(batches, steps_per_epoch=50, verbose=0)

        assert len(ledger) == 5
        assert threads() == 0


class TestFreed:
    def trained(self, read):
        x = np.ones([500, 3], np.float32)
        private, _ = private_model()
        read(private, x)
        return weakref.ref(x)

    @pytest.mark.parametrize("by", ["fit", "evaluate", "predict"])
    def test_records_go_with_the_model_that_read_them(self, by):
        def read(private, x):
            data = sampler((x, np.ones([500, 1], np.float32)))
            if by == "fit":
                private.fit(data, steps_per_epoch=2, epochs=1, verbose=0)
            else:
                getattr(private, by)(data, verbose=0)

        held = self.trained(read)

        # TensorFlow frees the data sets of `evaluate` in threads of its own.
        wait_until(lambda: gc.collect() >= 0 and held() is None)

    @pytest.mark.parametrize("at_once", [1, 2])
    @pytest.mark.parametrize("error", [None, KeyboardInterrupt])
    def test_a_model_keeps_no_records_and_no_threads(self, at_once, error):
        private, _ = private_model()
        private.steps_per_execution = at_once
        x = np.ones([500, 3], np.float32)
        held = weakref.ref(x)
        data = sampler((x, np.ones([500, 1], np.float32)))
        seen = set()

        def act(batch, logs):
            seen.add(threads("keras_dp input"))
            if error is not None:
                raise error

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=act)
        with contextlib.suppress(KeyboardInterrupt):
            private.fit(
                data, steps_per_epoch=4, verbose=0, callbacks=[callback]
            )
        del x, data
        gc.collect()

        assert held() is None
        assert seen == {1}  # Control: there was one.
        assert threads() == 0

    def test_a_run_of_batches_keeps_none_of_them(self):
        private, _ = private_model()
        x = np.ones([8, 3], np.float32)
        held = weakref.ref(x)
        private.train_on_batch(x, np.ones([8, 1], np.float32))
        del x
        gc.collect()

        assert held() is None

    def test_control_finds_what_tensorflow_keeps(self):
        def read(private, x):
            def rows():
                yield from x

            spec = tf.TensorSpec((3,), tf.float32)
            data = tf.data.Dataset.from_generator(rows, output_signature=spec)
            next(iter(data))

        held = self.trained(read)
        gc.collect()

        assert held() is not None

    def test_is_refused_when_its_function_is_gone(self):
        data = _generated(lambda: iter([1.0]), tf.TensorSpec((), tf.float32))
        del data.elements
        gc.collect()

        with pytest.raises(Exception, match="Keep the data set"):
            list(data)
