"""Whether rounds run in blocks, by which compiler, and how many at once."""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._devices import has_accelerator
from keras_dp._nests import Nest
from keras_dp.keras_internals import (
    layers_of,
    passes_training_on,
    print_line,
)
from keras_dp.sampling import Sampler

# Between two callbacks; `fit` shows its progress so often.
_SECONDS = 0.5
# A round takes this many times the forward pass of its batch, or less.
_FORWARD_PASSES = 3.0
# A first call that takes longer is not repeated. It prepares operations, too.
_LONG = 0.2
# Where nobody says how much memory there is, as on an accelerator.
_MOST_BYTES = 4 * 2**30
# On a CPU, XLA takes seconds to compile a small network of these layers, and
# saves a fifth to a half of a round (docs/measurements.md). Larger products
# take as long, and convolutions four times as long.
_LEAST_BY_XLA = 20_000
_MOST_WEIGHTS_BY_XLA = 200_000
_BY_XLA = (
    keras.layers.InputLayer,
    keras.layers.Dense,
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Concatenate,
)
# Nobody knows how long a model takes that is not built.
_UNKNOWN = 8
_OF_BATCHES = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


def check_at_once(steps: int) -> None:
    """Raises unless so many rounds can run between two calls of callbacks."""
    remedy = ' Leave it out for 1, or pass "auto" to compile.'
    _check.integer_at_least(1, remedy, steps_per_execution=steps)


def why_one_by_one(
    source: Any,
    *,
    adapts: bool,
    spreads: bool,
    is_eager: bool,
    is_audited: bool,
) -> str:
    """Returns why rounds are run one by one, "" if they run in blocks."""
    if not isinstance(source, Sampler):
        return "the batches come from the caller"
    for holds, why in (
        (adapts, "what a round releases depends on the rounds before"),
        (spreads, "replicas share each batch"),
        (is_eager, "`run_eagerly` is True"),
        (is_audited, "an audit looks at each round"),
        (source.map is not None, "a map changes records that are drawn"),
        (
            source.records.in_memory is None,
            "the records are read from files, or from a source",
        ),
    ):
        if holds:
            return why
    size = sum(x.nbytes for x in keras.tree.flatten(source.records.in_memory))
    if size > _most_bytes():
        return (
            f"the records take {size / 2**30:,.1f} GiB, more than a third of "
            "the memory"
        )
    return ""


def pays_by_xla(model: keras.Model, fit: Mapping[str, Any]) -> bool:
    """Returns whether XLA saves more time than it takes to compile.

    On accelerators Keras's own "auto" chooses XLA. Nobody knows how many rounds
    a loop of one's own has.
    """
    rounds = int(fit.get("steps_per_epoch", 0)) * fit.get("epochs", 0)
    return (
        rounds >= _LEAST_BY_XLA
        and not has_accelerator()
        and model.built
        and model.count_params() <= _MOST_WEIGHTS_BY_XLA
        and all(
            type(each) in _BY_XLA or passes_training_on(each)
            for each in layers_of(model)
        )
    )


def _most_bytes() -> float:
    """Returns a third of the memory of the device."""
    if has_accelerator() or not hasattr(os, "sysconf"):  # Windows has none.
        return _MOST_BYTES
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 3


def rounds_at_once(
    model: keras.Model, sampler: Sampler, fit: Mapping[str, Any]
) -> int:
    """Returns a number of rounds that take about half a second.

    It divides an epoch into equal parts. The time follows from a forward pass
    on zeros, so that it tells nothing of the records. It is 1 where a callback
    acts on each round.
    """
    if name := _acts_on_batches(fit.get("callbacks")):
        if fit.get("verbose"):
            print_line(f"Rounds run one at a time, for {name} acts on each.")
        return 1
    rounds = int(fit["steps_per_epoch"])
    if not model.built:
        return min(_UNKNOWN, rounds)
    structure = sampler.records.structure
    x, _, _ = keras.utils.unpack_x_y_sample_weight(structure)
    zeros = keras.tree.map_structure(
        lambda spec: tf.zeros(
            [sampler.physical_batch_size, *spec.shape], spec.dtype
        ),
        x,
    )
    try:
        seconds = _seconds(model, zeros)
        if seconds < _LONG:
            seconds = min(seconds, _seconds(model, zeros))
    except Exception:  # noqa: BLE001 - the first batch shows what is wrong.
        return 1
    most = max(1, int(_SECONDS / (_FORWARD_PASSES * seconds)))
    return math.ceil(rounds / math.ceil(rounds / most))


def _seconds(model: keras.Model, inputs: Nest) -> float:
    start = time.perf_counter()
    model(inputs, training=False)
    return time.perf_counter() - start


def _acts_on_batches(callbacks: Any) -> str:
    """Returns the name of a callback that must see each round, "" for none.

    Callbacks of Keras count rounds where several run at once.
    """
    for each in keras.tree.flatten(callbacks):
        for name in _OF_BATCHES:
            method = getattr(each, name, None)
            module = getattr(method, "__module__", None)
            is_known = isinstance(module, str) and module.startswith(
                ("keras.", "keras_dp.")
            )
            if method is not None and not is_known:
                return type(each).__name__
    return ""
