"""Looks at the data of a training before anything is traced or recorded.

All that is said of shapes, kinds and structures of inputs, targets and weights
is said here; `keras_dp.sampling.kinds` says which kinds are taken at all. No
message holds an entry of the data.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _nests
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import batch_losses
from keras_dp.keras_internals import (
    build_from_batch,
    compiled_loss_of,
    trace_of,
)
from keras_dp.sampling import Sampler
from keras_dp.sampling.kinds import check_kinds

# Keras says this of targets whose shape or structure the loss cannot take.
_OF_SHAPES = ("target.shape=", "node compile_loss/")
_OF_STRUCTURES = ("have different structures", "The path: (")
_NUMBER_CLASSES = (
    "Number the classes, such as by np.unique(y, return_inverse=True)."
)
_NUMBER_VALUES = (
    "Number the values, such as by np.unique(x, return_inverse=True); or begin "
    "the model with StringLookup or TextVectorization, and pass "
    "tf.constant(x)."
)
_SOME_LOST = (
    "Records of the first batch have a NaN or an infinity in their inputs or "
    "targets. Such records count as zero: they train nothing. Replace missing "
    "values; np.isfinite(x).all(axis=0) shows their columns."
)


def check_given(**named: Any) -> None:
    """Raises for what `fit` is given that cannot be trained on, by name."""
    for name, data in named.items():
        if data is None or isinstance(data, Sampler):
            continue
        if isinstance(data, tf.data.Dataset):
            data = data.element_spec
        elif isinstance(data, keras.utils.PyDataset):
            data = data[0] if data.num_batches != 0 else ()
        check_kinds(data, name, needs_rank=False)
        x = data if name == "x" else None
        if name == "validation_data" and isinstance(data, list | tuple):
            x = data[:1]
        inputs = set(map(id, keras.tree.flatten(x)))
        for leaf in keras.tree.flatten(data):
            _check_array(leaf, name, is_input=id(leaf) in inputs)
    y, weight = named.get("y"), named.get("sample_weight")
    if keras.tree.is_nested(weight) and (
        _nests.paths(weight) != _nests.paths(y)
    ):
        raise ValueError(
            "`sample_weight` must be one array, or have an entry for each of "
            f"`y`. Received: {_nests.shown(weight)} for {_nests.shown(y)}. "
            "Give the others weights of 1."
        )


def _check_array(leaf: Any, name: str, *, is_input: bool) -> None:
    """Raises for arrays of NumPy that Keras does not take."""
    if isinstance(leaf, np.ndarray | np.generic) and not leaf.ndim:
        raise ValueError(
            f"`{name}` must have an entry for each record, along the first "
            "axis. Received: a single number. Give each record its own."
        )
    dtype = getattr(leaf, "dtype", None)
    kind = dtype.kind if isinstance(dtype, np.dtype) else ""
    remedy = _NUMBER_VALUES if is_input else _NUMBER_CLASSES
    if kind in ("U", "S"):
        raise _not_numbers(name, f"text of dtype {dtype}", remedy)
    if kind == "O" and isinstance(leaf, np.ndarray):
        # Keras takes such text along one axis alone.
        if is_input and all(isinstance(entry, str) for entry in leaf):
            return
        raise _not_numbers(
            name,
            "an array of objects",
            f"Give numbers a dtype, by astype('float32'). {remedy}",
        )


def check_some_targets(**named: Any) -> None:
    """Raises for arrays or a data set of inputs alone, to be evaluated."""
    for name, data in named.items():
        spec = data.element_spec if isinstance(data, tf.data.Dataset) else data
        if isinstance(spec, tuple) and len(spec) > 3:
            raise ValueError(
                f"`{name}` must be (inputs, targets) or (inputs, targets, "
                f"sample_weight). Received: a tuple of {len(spec)}. Put "
                "several inputs or targets into a list or a dict."
            )
        x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
        if y is None and all(
            hasattr(a, "shape") for a in keras.tree.flatten(x)
        ):
            raise ValueError(
                f"`{name}` must come with targets: the loss compares outputs "
                "with them. Received: inputs alone. Give the targets, too, "
                "such as validation_data=(x, y) or evaluate(x, y). For an "
                "autoencoder they are the inputs."
            )


def check_batch(x: Any, y: Any, sample_weight: Any) -> None:
    """Raises unless a physical batch has targets, and one length."""
    lengths = {tuple(leaf.shape)[:1] for leaf in _leaves((x, y, sample_weight))}
    if len(lengths) != 1:
        raise ValueError(
            "Inputs, targets and sample weights must have examples along their "
            "first axis, and the same number of them. Received: the lengths "
            f"{sorted(lengths)!r}. Give each of them one entry for each "
            "example."
        )
    if y is None:
        raise ValueError(
            "`y` must be given: the loss compares outputs with targets. "
            "Received: inputs alone. Put targets beside the inputs, such as "
            "PoissonBatches((x, y), ...). For an autoencoder, "
            "PoissonBatches((x, x), ...) makes no copy."
        )


def build_and_check(private: keras.Model, batch: Any) -> str:
    """Builds a compiled private model for a batch, if its parts go together.

    The result is a warning, empty without one.
    """
    x, y, weight = batch.data
    if any(map(_is_text, _leaves(y))):
        raise _not_numbers("y", "targets of text", _NUMBER_CLASSES)
    with _naming_targets(y):
        # Keras would blame the targets for weights that do not fit.
        build_from_batch(private, (x, y, None))
    if weight is not None:
        _check_weights(compiled_loss_of(private), private.model, x, y, weight)
    return _SOME_LOST if _loses_some(private.model, x, y, batch.mask) else ""


@contextlib.contextmanager
def _naming_targets(y: Any) -> Iterator[None]:
    """Replaces errors of Keras's losses, which have no remedy."""
    try:
        yield
    except (KeyError, ValueError) as error:
        text = str(error.args[0]) if error.args else ""
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in _leaves(y))
        if any(words in text for words in _OF_SHAPES):
            raise ValueError(
                "`y` must have a shape that goes with the loss: integer labels "
                "[batch] with sparse_categorical_crossentropy, one-hot rows "
                "[batch, classes] with categorical_crossentropy, and the shape "
                "of the outputs with most other losses. Received: batches of "
                f"shape {shapes}. Change the loss, or y. Keras says: {text}"
            ) from None
        if any(words in text for words in _OF_STRUCTURES):
            raise ValueError(
                "`y` must have an entry for each output of the model that has "
                f"a loss. Received: {_nests.shown(y)}. Name the targets and "
                f"the losses as the outputs. Keras says: {text}"
            ) from None
        raise


def _check_weights(
    compiled_loss: Any, model: keras.Model, x: Any, y: Any, weight: Any
) -> None:
    """Raises for weights that belong to no record and to no entry of a loss."""
    shapes: dict[tuple[Any, ...], tf.TensorShape] = {}

    def ask(x: Any, y: Any) -> None:
        outputs = model(x, training=False)
        shapes.update(batch_losses(compiled_loss, y, outputs).shapes)

    trace_of(tf.function(ask, autograph=False), x, y)
    for path, entries in shapes.items():
        own = _at(path, weight)
        if own is None or keras.tree.is_nested(own):
            names = ["/".join(map(str, each)) for each in shapes]
            raise ValueError(
                "`sample_weight` must be one array, or have an entry for each "
                f"output that has a loss: {names!r}. Received: "
                f"{_nests.shown(weight)}. Give the others weights of 1."
            )
        if not _fits(tuple(own.shape), tuple(entries)):
            raise ValueError(
                "`sample_weight` must have one entry for each record, of shape "
                f"{tuple(entries)[:1]}, or one for each entry of its loss, of "
                f"shape {tuple(entries)}. Received: batches of shape "
                f"{tuple(own.shape)}. Take the mean of the weights over the "
                "other axes."
            )


def _at(path: tuple[Any, ...], weight: Any) -> Any:
    """Returns the weights of an output, `None` if there are none."""
    if not keras.tree.is_nested(weight):
        return weight
    try:
        return functools.reduce(lambda part, key: part[key], path, weight)
    except (IndexError, KeyError, TypeError):
        return None


def _fits(weight: tuple[int, ...], entries: tuple[int, ...]) -> bool:
    """Whether weights of this shape are of records or of entries."""
    if all(length == 1 for length in weight[1:]):
        return True
    if len(weight) == len(entries) + 1 and weight[-1] == 1:
        weight = weight[:-1]
    if len(weight) == len(entries) - 1 and entries[-1] == 1:
        entries = entries[:-1]
    return len(weight) == len(entries) and all(
        own in (1, length) for own, length in zip(weight, entries, strict=True)
    )


def _loses_some(model: keras.Model, x: Any, y: Any, mask: Any) -> bool:
    """Returns whether some records are not finite; raises if no record is.

    All of them would count as zero, and rounds release nothing but noise. Some
    do not show: a ReLU makes the loss that is shown finite. The mask says which
    rows are records, `[batch]`; `None` stands for all.
    """
    if any(map(_is_text, _leaves(x))):
        try:
            model(x)
        except tf.errors.UnimplementedError as error:
            if "string" not in error.message:
                raise
            raise _not_numbers("x", "text", _NUMBER_VALUES) from None
    rows = keras.tree.flatten(x)[0].shape[0]
    real = np.ones(rows, bool) if mask is None else np.asarray(mask)
    lost = real & ~_finite_rows((x, y), rows)
    if lost.any():  # A layer of the model may deal with missing values.
        lost &= ~_finite_rows((model(x), y), rows)
    if not lost.any():
        return False
    if (lost != real).any():
        return True
    raise PrivateTrainingError(
        "`x` must have records that are finite. Received: a first batch of "
        "which each record has a NaN or an infinity in its inputs or targets. "
        "Such records count as zero, so that epsilon would be spent on noise "
        "alone. No round ran. Look at the columns of the data: "
        "np.isfinite(x).all(axis=0)."
    )


def _finite_rows(nest: Any, rows: int) -> np.ndarray:
    """Returns which rows have only finite numbers, `[rows]`."""
    finite = np.ones(rows, bool)
    for leaf in _leaves(nest):
        if not tf.as_dtype(leaf.dtype).is_floating:
            continue
        each = tf.reshape(tf.math.is_finite(leaf), [rows, -1])
        finite &= tf.reduce_all(each, axis=1).numpy()
    return finite


def _not_numbers(name: str, what: str, remedy: str) -> ValueError:
    return ValueError(f"`{name}` must hold numbers. Received: {what}. {remedy}")


def _is_text(leaf: Any) -> bool:
    return bool(tf.as_dtype(leaf.dtype) == tf.string)


def _leaves(nest: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(nest) if leaf is not None]
