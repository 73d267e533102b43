"""Says which ids or labels are out of range, and shows none of them.

Arrays in memory are read before a training. Other records are found when they
are drawn, by an error of TensorFlow.
"""

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients import batch_losses, without_variable_writes
from keras_dp.keras_internals import compiled_loss_of, layers_of
from keras_dp.sampling import Sampler
from keras_dp.sampling.record_source import as_arrays
from keras_dp.training.data.record_map import Augmentation

_LABELS = (
    "`y` must hold integer labels in [0, {end}), one for each output of the "
    "model. Received: labels outside of it. Number the classes from 0, such "
    "as by np.unique(y, return_inverse=True), or give the last layer more "
    "units."
)
_IDS = (
    "`x` must hold ids in [0, {end}), the rows of the table that {node} looks "
    "them up in. Received: ids outside of it. Number the ids from 0, or give "
    "the Embedding a larger input_dim."
)
# The words of TensorFlow 2.21, its range, and what is said in their place.
_RULES = (
    (re.compile(r"outside the valid range of \[0, (\d+)\)"), _LABELS),
    (re.compile(r"indices.* is not in \[0, (\d+)\)"), _IDS),
)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_GENERATED = (
    "`x` must yield batches of one structure, of dense arrays. Received: a "
    "batch that differs from the first. Give all of them the shapes and dtypes "
    "of the first, along all axes but that of the batch."
)
# The operations that look up rows: the places of their table and their numbers.
_LABELLING = "SparseSoftmaxCrossEntropyWithLogits"
_LOOKUPS = {_LABELLING: (0, 1), "GatherV2": (0, 1)}
_AT_ONCE = 4096


class _Lookup(NamedTuple):
    """An operation that looks up rows by numbers that follow from data."""

    numbers: tf.Tensor
    end: int  # The number of rows.
    name: str


class FirstLook:
    """Looks for faults that a later record would cause, once it is drawn.

    Labels and ids in memory are read, and the first batch of the validation
    data goes through the model. What it tells is forgotten. A look takes as
    long as a trace: the same data is not looked at twice in turn.
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def look(
        self,
        private: keras.Model,
        x: Any,
        fit: Mapping[str, Any],
        *,
        evaluates: bool,
        is_one_of_many: bool,
    ) -> None:
        """Raises for ids, labels or validation data that would end a training.

        It looks at the first of the batches of `train_on_batch` alone. `fit`
        are the arguments for Keras's own `fit`, but for `x`.
        """
        y, data = fit.get("y"), fit.get("validation_data")
        before, now = self._seen, _references(x, y, data)
        is_seen = len(before) == len(now) and all(
            one() is other() for one, other in zip(before, now, strict=True)
        )
        if is_seen or (before and is_one_of_many):
            return
        loss = compiled_loss_of(private)
        check_ranges(private.model, loss, x, y)
        self._seen = now
        # An iterator can be read but once, at the end of the epoch.
        is_readable = data is not None and not isinstance(data, Iterator)
        if not is_readable or not evaluates:
            return
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        size = fit.get("validation_batch_size") or fit.get("batch_size") or 32
        if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
            size = None  # It has batches of its own.
        try:
            check_ranges(private.model, loss, x, y)
            private.evaluate(x, y, size, 0, weight, steps=1, return_dict=True)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise _invalid_validation_data(error) from None
        finally:
            private.reset_metrics()


def _invalid_validation_data(error: Exception) -> ValueError:
    """Returns what says that the model cannot be evaluated.

    The text of an error of TensorFlow is left out: it may show values.
    """
    said = str(error)
    if isinstance(error, tf.errors.OpError):
        said = (
            f"{type(error).__name__}: are its values of the kind, and in the "
            "range, that the model and the loss take?"
        )
    return ValueError(
        "`validation_data` must be data that the model can be evaluated on, "
        f"like that on which it is trained. No round ran. Received: {said}"
    )


def _references(*data: Any) -> list[Any]:
    """Returns weak references to data, or what cannot be referred to so."""
    found: list[Any] = []
    for leaf in keras.tree.flatten(data):
        try:
            found.append(weakref.ref(leaf))
        except TypeError:
            found.append(lambda leaf=leaf: leaf)
    return found


def check_in_range(error: tf.errors.InvalidArgumentError) -> None:
    """Raises in place of an error of TensorFlow that shows ids or labels."""
    text = str(error)
    if "`generator` yielded an element" in text:  # It shows the element.
        raise ValueError(_GENERATED) from None
    for words, message in _RULES:
        if found := words.search(text):
            node = _NODE.search(text)
            named = "a layer" if node is None else repr(node[1])
            raise ValueError(message.format(end=found[1], node=named)) from None


def check_ranges(
    model: keras.Model, compiled_loss: Any, source: Any, y: Any = None
) -> None:
    """Raises for labels or ids of records in memory that are out of range.

    All records are read, so that none of them can end a training when it is
    drawn. Numbers are looked at as the loss and the layers see them: the
    entries that `ignore_class` leaves out may be anything. Nothing is known of
    records in files, of data sets, and of what a map makes of records. The
    model and its loss are built. The source is a sampler, or the inputs beside
    `y`.
    """
    x = source
    if isinstance(source, Sampler):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(source.records.in_memory)
        if source.map is not None:
            x = None  # An augmentation keeps the targets.
            y = y if isinstance(source.map, Augmentation) else None
    x, y = map(_in_memory, (x, y))
    layers = layers_of(model)
    if x is not None and any(
        isinstance(e, keras.layers.Embedding) for e in layers
    ):

        def call(x: Any) -> None:
            with without_variable_writes(model):
                model(x, training=False)

        _check(call, x, _IDS)
    specs = None if y is None else _outputs_of(model, x)
    if specs is None:
        return

    def loss(y: Any) -> None:
        # Only the numbers are computed, and they need no output.
        rows = keras.tree.flatten(y)[0].shape[0]
        outputs = keras.tree.map_structure(
            lambda spec: tf.zeros([rows, *spec.shape[1:]], spec.dtype), specs
        )
        batch_losses(compiled_loss, y, outputs)

    _check(loss, y, _LABELS)


def _in_memory(nest: Any) -> Any:
    """Returns `None` for what is not in memory."""
    leaves = keras.tree.flatten(nest)
    if not all(hasattr(leaf, "__array__") for leaf in leaves) or any(
        isinstance(leaf, np.memmap) for leaf in leaves
    ):
        return None
    return as_arrays(nest) if leaves else None


def _outputs_of(model: keras.Model, x: Any) -> Any:
    """Returns the specs of the outputs, `None` where they are not known.

    A model that only runs eagerly has none, nor has one that takes its inputs
    in the form that `fit` gives to them.
    """
    if x is None:
        inputs = getattr(model, "inputs", None)
        if inputs is None:
            return None
    else:
        # A functional model knows its outputs for batches of any size.
        is_functional = getattr(model, "inputs", None) is not None
        rows = None if is_functional else _AT_ONCE
        inputs = keras.tree.map_structure(
            lambda leaf: keras.KerasTensor(
                (rows, *leaf.shape[1:]), tf.as_dtype(leaf.dtype).name
            ),
            x,
        )
    with contextlib.suppress(Exception):
        return model.compute_output_spec(inputs)
    return None


def _check(function: Callable[[Any], Any], nest: Any, message: str) -> None:
    """Raises if a function of some arrays looks up rows that there are not."""
    leaves = keras.tree.flatten(nest)
    found: list[_Lookup] = []

    def ranges(*rows: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        function(keras.tree.pack_sequence_as(nest, list(rows)))
        found.extend(_lookups(graph, {each.name for each in rows}))
        return [
            tf.stack([tf.reduce_min(numbers), tf.reduce_max(numbers)])
            for numbers, _, _ in found
        ]

    at_once = min(_AT_ONCE, len(leaves[0]))
    specs = [tf.TensorSpec((at_once, *x.shape[1:]), x.dtype) for x in leaves]
    try:
        # The rest, such as the loop of a recurrent layer, is cut off.
        whole = tf.compat.v1.wrap_function(ranges, specs)
        trace = whole.prune(whole.inputs[: len(specs)], whole.outputs)
    except Exception:  # noqa: BLE001 - the step itself was traced before.
        return
    for start in range(0, len(leaves[0]) if found else 0, at_once):
        # The last record is read several times, because shapes are fixed.
        rows = np.arange(start, start + at_once).clip(max=len(leaves[0]) - 1)
        taken = [tf.convert_to_tensor(x[rows]) for x in leaves]
        with tf.device("CPU:0"):
            answers = trace(*taken)
        for (low, high), lookup in zip(answers, found, strict=True):
            if low < 0 or high >= lookup.end:
                raise ValueError(
                    message.format(end=lookup.end, node=repr(lookup.name))
                )


def _lookups(graph: tf.Graph, data: set[str]) -> Iterator[_Lookup]:
    """Yields the lookups of a graph, given the names of tensors of data."""
    for operation in graph.get_operations():
        if operation.type not in _LOOKUPS:
            continue
        table, numbers = (operation.inputs[k] for k in _LOOKUPS[operation.type])
        axis = -1
        if operation.type != _LABELLING:
            axis = tf.get_static_value(operation.inputs[2])
        end = None if table.shape.rank is None else table.shape[axis]
        if end is not None and _follows_from(numbers, data):
            yield _Lookup(numbers, int(end), operation.name)


def _follows_from(tensor: tf.Tensor, data: set[str]) -> bool:
    """Whether a tensor is computed from data, and from nothing else."""
    left, seen, has_data = [tensor], set(), False
    while left:
        each = left.pop()
        if each.name in data:
            has_data = True
        elif each.op.op_def.is_stateful or each.op.type == "Placeholder":
            return False
        elif each.name not in seen:
            left += each.op.inputs
        seen.add(each.name)
    return has_data
