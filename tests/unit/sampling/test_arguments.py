"""Data and arguments that samplers refuse."""

import re

import numpy as np
import pytest

from keras_dp import sampling
from keras_dp.sampling import PoissonBatches


class Source:
    """As many records as asked for."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, indices):
        return indices


def test_errors_never_show_data():
    with pytest.raises(TypeError) as raised:
        PoissonBatches(([123456.0],), sampling_probability=0.1)

    assert "123456" not in str(raised.value)


@pytest.mark.parametrize(
    "base",
    [
        getattr(sampling, name)
        for name in sampling.__all__
        if name.endswith(("Batches", "Sampler", "Microbatches"))
    ],
)
def test_nothing_else_may_say_that_the_library_drew(base):
    """A subclass could repeat a batch, and its event would claim a fresh one.

    Control: other classes, such as sources of records, may have subclasses.
    """
    with pytest.raises(TypeError, match="class Own"):
        type("Own", (base,), {"__module__": __name__})

    type("Own", (sampling.TFRecordShards,), {"__module__": __name__})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], TypeError, "`data` must hold at least one array. Received: an"),
        (np.ones((0, 3)), ValueError, "at least one record. Received: 0"),
        (Source(0), ValueError, "at least one record. Received: 0"),
        ([1.0, 2.0], TypeError, "Received: float at /0. .*np.asarray"),
        ({"x": "abc"}, TypeError, "Received: str at /x"),
        ("abc", TypeError, "Received: str at /"),
        (None, TypeError, "Received: NoneType at /"),
        (iter([1]), TypeError, "Received: list_iterator at /"),
        (np.float32(1), ValueError, r"first axis .* shape \(\) and dtype fl"),
        (np.array([None, 1]), ValueError, "fixed size.* dtype object at /"),
        (
            (np.ones((3, 2)), np.ones(4)),
            ValueError,
            r"equal length .* Received: shapes \(3, 2\), \(4,\)\.",
        ),
    ],
)
def test_bad_data(data, error, message):
    with pytest.raises(error, match=message):
        PoissonBatches(data, sampling_probability=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        *[
            ({"sampling_probability": q}, ValueError, r"in \(0, 1\].*=-?\S+\.")
            for q in (0, -0.1, 1.1, float("nan"), float("inf"))
        ],
        ({"sampling_probability": "1"}, TypeError, "a number. .*'1'"),
        ({"sampling_probability": 1e-20}, ValueError, "at least 2.*=1e-20"),
        ({"physical_batch_size": 0}, ValueError, "integer >= 1 .*=0"),
        ({"physical_batch_size": 2.5}, TypeError, "an integer. .*=2.5"),
        ({"rounds_per_epoch": 0}, ValueError, "integer >= 1 .*=0"),
        ({"seed": -1}, ValueError, "integer >= 0 .*=-1"),
        ({"seed": 0.5}, TypeError, "an integer. .*=0.5"),
    ],
)
def test_bad_arguments(arguments, error, message):
    (name,) = arguments
    arguments = {"sampling_probability": 0.1, **arguments}

    with pytest.raises(error, match=f"^`{name}` must be .*{message}"):
        PoissonBatches(np.ones(4), **arguments)


def test_too_many_records():
    with pytest.raises(ValueError, match="`population_size` must"):
        PoissonBatches(Source(2**46 + 1), sampling_probability=0.1)


class Lying(Source):
    """Keeps its word for one record only."""

    def __init__(self, answer):
        super().__init__(50)
        self.answer = answer

    def __getitem__(self, indices):
        if len(indices) == 1:
            return np.ones(1), np.ones((1, 2))
        return self.answer(len(indices))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda n: np.ones(n),
            "structure .* Received: one ndarray at /, where",
        ),
        (
            lambda n: (np.ones(n),),
            r"tuple of \[0\] at /, .* a tuple of \[0, 1\]",
        ),
        (
            lambda n: ((np.ones(n),), np.ones((n, 2))),
            "a tuple .* at /0",
        ),
        (
            lambda n: (np.ones(n - 1), np.ones((n, 2))),
            r"\(50,\) .* at /0.*\(49",
        ),
        (
            lambda n: (np.ones(n), np.ones((n, 3))),
            r"\(50, 2\) .* at /1.*0, 3\)",
        ),
        (lambda n: (np.ones(n, int), np.ones((n, 2))), "float64 at /0.*int64"),
    ],
)
def test_a_source_that_answers_something_else(answer, message):
    batches = PoissonBatches(Lying(answer), sampling_probability=1.0)

    with pytest.raises(ValueError, match=message) as raised:
        next(iter(batches))
    assert re.match("^`data.indices.` must have ", str(raised.value))


def test_a_source_of_batches_instead_of_records():
    class Batches(Source):
        def __getitem__(self, index):
            return np.ones(32), np.ones(32)

    message = r"equal length .* shapes \(32,\), \(32,\) for 1 index"
    with pytest.raises(ValueError, match=message):
        PoissonBatches(Batches(10), sampling_probability=0.1)
