"""Changes records by a function of one record, or by Keras layers.

A sampler with `map=` applies the function once for each view.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp import _check, _nests
from keras_dp._nests import Nest, mapped
from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients.unsupported import stateful_operations
from keras_dp.gradients.unsupported.layers import MIXING
from keras_dp.keras_internals import is_seed_state, takes_training, trace_of
from keras_dp.sampling import RecordSpec, Sampler
from keras_dp.sampling.pipelines import check_holds_no_records
from keras_dp.sampling.random_words import Words
from keras_dp.sampling.record_source import as_arrays, in_places

# In Keras 3.15 each of these computes a row from this row alone, and from
# random numbers that it draws for each row: `[rows, ...]`. RandomCrop and
# RandomGaussianBlur draw once for all rows.
ROWWISE = (
    keras.layers.CenterCrop,
    keras.layers.GaussianNoise,
    keras.layers.RandomBrightness,
    keras.layers.RandomColorDegeneration,
    keras.layers.RandomContrast,
    keras.layers.RandomErasing,
    keras.layers.RandomFlip,
    keras.layers.RandomGrayscale,
    keras.layers.RandomHue,
    keras.layers.RandomInvert,
    keras.layers.RandomRotation,
    keras.layers.RandomSaturation,
    keras.layers.RandomSharpness,
    keras.layers.RandomShear,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
    keras.layers.Rescaling,
    keras.layers.Resizing,
)


# The class of Keras 3.15 whose layers take three axes for one image.
_IMAGES = "BaseImagePreprocessingLayer"


class Augmentation:
    """A map of samplers that changes the inputs of records by Keras layers.

    A record `(x, y, ...)` becomes `(augmented x, y, ...)`. It is for the
    argument `map` of samplers, and `Records(augment=...)` makes one.

    Guarantee: as for `RecordMap`. Keras layers of which it is known that they
    keep the rows of a batch apart, and draw random numbers for each of them,
    are called on many records at once. Other layers and functions are called on
    one record at a time.

    Attributes:
        stages: The layers and functions, in their order.

    >>> import numpy as np
    >>> from keras_dp.sampling import PoissonBatches
    >>> images, labels = np.zeros([100, 8, 8, 1], "float32"), np.zeros([100])
    >>> augmentation = Augmentation(
    ...     keras.layers.RandomFlip("horizontal"),
    ...     keras.layers.RandomTranslation(0.1, 0.1))
    >>> augmentation.is_rowwise
    True
    >>> PoissonBatches((images, labels), sampling_probability=0.1,
    ...                map=augmentation, views=4)
    <PoissonBatches of 100 records, ..., views=4>
    """

    def __init__(self, *stages: Callable[..., Any]) -> None:
        """Calls none of them.

        Args:
            *stages: Keras layers, or a `Sequential` or `Pipeline` of them,
                which are called with `training=True` on a batch; and functions
                of TensorFlow of the inputs of one record.

        Raises:
            TypeError: There is none, or one is no function.
            PrivateTrainingError: A layer mixes records.
        """
        self.stages = [each for stage in stages for each in _parts(stage)]
        if not self.stages or not all(map(callable, self.stages)):
            raise TypeError(
                "`augment` must be Keras layers, or a function of the inputs "
                f"of one record. Received: augment={_check.shown(stages)}. "
                'Pass keras.layers.RandomFlip("horizontal"), for instance.'
            )
        for stage in self.stages:
            if isinstance(stage, MIXING):
                raise mixing(type(stage).__name__)

    @property
    def has_layers_only(self) -> bool:
        """Whether `of_rows` can be called."""
        return all(isinstance(each, keras.Layer) for each in self.stages)

    @property
    def is_rowwise(self) -> bool:
        """Whether layers are known to keep rows apart and to draw for each."""
        return all(type(each) in ROWWISE for each in self.stages)

    def __call__(self, x: Any, *rest: Any) -> Any:
        """Returns one record with other inputs.

        Args:
            x: Its inputs, without an axis for the batch.
            *rest: The rest of the record.
        """
        for stage in self.stages:
            if isinstance(stage, keras.Layer):
                x = _called(stage, keras.tree.map_structure(_as_batch, x))[0]
            else:
                x = stage(x)
        return (x, *rest) if rest else x

    def of_rows(self, x: Any, *rest: Any) -> Any:
        """Returns records with other inputs, all at once.

        Args:
            x: The inputs, `[rows, ...]`.
            *rest: The rest of the records.
        """
        for stage in self.stages:
            x = _called(stage, x)
        return (x, *rest) if rest else x


def mixing(what: str) -> PrivateTrainingError:
    """Returns the refusal of something that makes records interact."""
    return PrivateTrainingError(
        "`augment` must change each record by itself, or one record would "
        f"move the gradients of others. Received: {what}, which mixes the rows "
        "of a batch. Leave it out, or take a function of one record."
    )


def _parts(stage: Any) -> Iterator[Any]:
    """Yields the layers of a sequence of layers, or what else it is."""
    if isinstance(stage, list | tuple):
        layers = stage
    elif isinstance(stage, keras.Sequential | keras.layers.Pipeline):
        layers = stage.layers
    else:
        yield stage
        return
    for layer in layers:
        yield from _parts(layer)


def _as_batch(leaf: Any) -> tf.Tensor:
    return tf.convert_to_tensor(leaf)[tf.newaxis]


def _called(layer: keras.Layer, x: Any) -> Any:
    if not tf.is_tensor(x):
        raise TypeError(
            "`augment` must be a function where the inputs of a record are not "
            f"one array: layers take one. Received: {type(x).__name__}. Pass a "
            "function that calls the layers on the right part."
        )
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    if _IMAGES in kinds and x.shape.rank < 4:
        raise PrivateTrainingError(
            "`augment` must have layers of images for records that are images, "
            "[height, width, channels]: of others such a layer takes the rows "
            f"of a batch for the height. Received: {type(layer).__name__}, for "
            f"records of shape {tuple(x.shape[1:])}. Give the images an axis "
            "for the channels, such as x[..., np.newaxis]."
        )
    changed = layer(x, training=True) if takes_training(layer) else layer(x)
    if layer.trainable_weights:  # Known once it was called.
        raise PrivateTrainingError(
            "`augment` must have no weights to train, since nothing trains "
            f"them. Received: {type(layer).__name__}, with "
            f"{len(layer.trainable_weights)} of them. Make it a layer of the "
            "model, or set trainable=False where its weights are public."
        )
    return changed


# Seeds of 30 bits leave room to count up.
_SEED_BITS = 2**30 - 1
# Numbers of records, of which one is changed to see whether the others stay as
# they are. An axis can be as long as one of them by chance.
_COMPARED = (4, 13)


class RecordMap:
    """Maps each record that was drawn, once for each view.

    It applies the map of a sampler, if it has one.

    Guarantee: what stands in a row is a function of the record that was drawn
    for it and of random numbers of its own, fresh for each draw and each view.
    No record can touch the row of another, so that one record still moves the
    sum by its bound: the function is called on one record (`tf.map_fn`), and
    refused if it keeps anything from call to call. An `Augmentation` of layers
    that keep rows apart is called on many records at once. Whether random
    numbers are secret does not matter. Random numbers of Keras, such as those
    of `RandomFlip`, follow from the operating system's generator, whatever the
    seed of their layer; inside `reproducible()` from the seed of the sampler.

    The leaves of its structure are the `RecordSpec`s of a record as the model
    takes it.
    """

    def __init__(self, sampler: Sampler, views: int = 1) -> None:
        """Traces the function; see the argument `map` of `SamplerOptions`.

        It may not write, call Python, or hold an array of as many rows as there
        are records.
        """
        self._views, self.structure = views, sampler.records.structure
        self._of_records: Any = None
        if sampler.map is not None:
            self._trace(sampler.map, self.structure, len(sampler.records))

    def _trace(self, function: Any, structure: Nest, records: int) -> None:
        def called(function: Any, leaves: list[tf.Tensor], seed: Any) -> Any:
            record = _nests.join(structure, iter(leaves))
            with _FreshSeeds(seed):
                if isinstance(record, tuple):
                    return function(*record)
                return function(record)

        def of_record(leaves: list[tf.Tensor], seed: tf.Tensor) -> Any:
            return called(function, leaves, seed)

        specs = [
            tf.TensorSpec(spec.shape, spec.dtype)
            for spec in _nests.leaves(structure)
        ]
        seed = tf.TensorSpec([2], tf.int32)
        one = tf.function(of_record, autograph=False)
        name = "augment" if isinstance(function, Augmentation) else "map"
        try:
            traced = trace_of(one, specs, seed)
        except (TypeError, NotImplementedError) as error:
            said = str(error).rstrip(".")
            raise TypeError(
                f"`{name}` must be a function of TensorFlow of one record, "
                f"without an axis for the batch. Received: {said}. A `map` "
                "takes (x, y) as two arguments, an `augment` takes x alone; "
                "tf.where and tf.cond stand for `if`, keras.ops for NumPy."
            ) from error
        returned = traced.structured_outputs
        self.structure = mapped(_spec_of, returned)
        _check_keeps_nothing(traced.graph)
        check_holds_no_records([traced.graph], [records], name)

        @tf.function(
            autograph=False,
            input_signature=[
                [tf.TensorSpec([None, *s.shape], s.dtype) for s in specs],
                tf.TensorSpec([None, 2], tf.int32),
            ],
        )
        def of_records(leaves: list[tf.Tensor], seeds: tf.Tensor) -> Any:
            if isinstance(function, Augmentation) and function.is_rowwise:
                return called(function.of_rows, leaves, seeds[0])
            return tf.map_fn(
                lambda elements: of_record(*elements),
                (leaves, seeds[1:]),
                fn_output_signature=keras.tree.map_structure(
                    lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
                    returned,
                ),
            )

        self._of_records = of_records
        if isinstance(function, Augmentation) and function.has_layers_only:
            for rows in _COMPARED:
                _check_apart(
                    lambda *arguments: called(function.of_rows, *arguments),
                    specs,
                    rows,
                )

    def __call__(
        self, records: Nest, mask: npt.NDArray[np.bool_], words: Words
    ) -> Nest:
        """Returns the views of a physical batch, zeros where it has no record.

        The views of a record are consecutive: leaves are `[rows * views, ...]`.
        The function is called on no row without a record.
        """
        if self._of_records is None:
            return records
        rows = np.repeat(np.flatnonzero(mask), self._views)
        seeds = words(1 + len(rows)).view(np.int32).reshape(-1, 2)
        leaves = [leaf[rows] for leaf in _nests.leaves(records)]
        mask = np.repeat(mask, self._views)
        places = np.where(mask, np.cumsum(mask) - 1, -1)
        with tf.device("CPU:0"):
            changed = self._of_records(leaves, seeds)
        return mapped(
            lambda _, leaf: in_places(leaf, places), as_arrays(changed, "map")
        )


class _FreshSeeds(keras.StatelessScope):
    """Gives the seed generators that are used inside states of its own."""

    def __init__(self, seed: tf.Tensor) -> None:
        super().__init__()
        self._seed = seed
        self._states: dict[int, Any] = {}

    @override
    def get_current_value(self, variable: keras.Variable) -> Any:
        if not is_seed_state(variable):
            return None
        if id(variable) not in self._states:
            # Keras counts draws up in the second word, which has room for it.
            state = (self._seed & _SEED_BITS) + [len(self._states), 0]
            self._states[id(variable)] = tf.cast(state, variable.dtype)
        return self._states[id(variable)]

    @override
    def add_update(self, update: Any) -> None:
        variable, value = update
        if not is_seed_state(variable):
            raise _refusal(f"a write to the variable {variable.path!r}")
        self._states[id(variable)] = value


def _spec_of(path: str, leaf: Any) -> RecordSpec:
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.is_fully_defined():
        raise ValueError(
            "`map` must return tensors of a fixed shape, by which records are "
            f"put into one batch. Received: {leaf!r} at {path}. Set it with "
            "tf.ensure_shape(tensor, shape)."
        )
    dtype = np.dtype("S1")
    if leaf.dtype != tf.string:
        dtype = np.dtype(leaf.dtype.as_numpy_dtype)
    return RecordSpec(tuple(leaf.shape), dtype)


def _check_keeps_nothing(graph: tf.Graph) -> None:
    definition = graph.as_graph_def()
    bodies = {
        function.signature.name: function.node_def
        for function in definition.library.function
    }
    bodies["map"] = definition.node
    forbidden = stateful_operations.forbidden_in(["map"], bodies.__getitem__)
    if forbidden:
        raise _refusal(f"the operation {forbidden!r}")


def _check_apart(of_rows: Any, specs: list[tf.TensorSpec], rows: int) -> None:
    """Raises if one of a few records changes what others become."""

    def drawn(spec: tf.TensorSpec, draw: int) -> tf.Tensor:
        shape = [rows, *spec.shape]
        if spec.dtype == tf.string:
            return tf.fill(shape, "")
        numbers = tf.random.stateless_uniform(
            shape, [0, draw], 0, 100, alg="philox"
        )
        return tf.cast(numbers, spec.dtype)

    first, second = ([drawn(spec, k) for spec in specs] for k in range(2))
    is_changed = tf.range(rows) == 1
    others = [
        tf.where(tf.reshape(is_changed, [-1] + [1] * spec.shape.rank), b, a)
        for spec, a, b in zip(specs, first, second, strict=True)
    ]
    function = tf.function(of_rows, autograph=False)
    seed = tf.constant([3, 5])
    before, after = (
        [np.delete(np.asarray(leaf), 1, axis=0) for leaf in _nests.leaves(each)]
        for each in (function(first, seed), function(others, seed))
    )
    for one, other in zip(before, after, strict=True):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
            raise mixing("a layer")


def _refusal(what: str) -> PrivateTrainingError:
    return PrivateTrainingError(
        "`map` and `augment` must keep nothing from one record to the next, "
        "and call no Python, or records could touch each other. Received: a "
        f"function with {what}. Do this once, before training, for all records."
    )
