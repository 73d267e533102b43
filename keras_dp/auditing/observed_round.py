"""A round for audits, which keeps its sums and can repeat its answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_dp._override import override
from keras_dp.optimizers.private_round import (
    Event,
    PrivateRound,
    Released,
    Sample,
    State,
)
from keras_dp.optimizers.record_batch import RecordBatch

# With a clip that is larger by this factor, ordinary records are not clipped.
_NO_CLIP = 1e6


class Kept:
    """Keeps the last value of a nest of tensors, of fixed shapes."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._variables: list[tf.Variable] = []

    def keep(self, nest: Any) -> None:
        """Stores a nest, also inside a `tf.function`."""
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(nest)]
        if self._structure is None:
            with tf.init_scope():
                self._variables = [
                    tf.Variable(tf.zeros(leaf.shape, leaf.dtype))
                    for leaf in leaves
                ]
            self._structure = tf.nest.map_structure(lambda _: 0, nest)
        for variable, leaf in zip(self._variables, leaves, strict=True):
            variable.assign(leaf)

    def read(self) -> Any:
        """Returns the nest as it was stored last."""
        values = [tf.identity(variable) for variable in self._variables]
        return tf.nest.pack_sequence_as(self._structure, values)


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedRound(PrivateRound):
    """Answers as another round does, and keeps its sums and its answers.

    Everything it keeps is secret. It can repeat the last answers in the next
    round. If two samples then lead to different results, something in the
    sample reached the result without passing through the queries.

    Attributes:
        sums: The sample that was released last, by name of the query.
        released: The last release.
        repeats: Whether the next release repeats the last one, boolean.
        loosening: The factor of the clip, for queries that have the clip in
            their state. With a larger clip, records that clipping makes equal
            give different sums.
    """

    sums: Kept = dataclasses.field(default_factory=Kept)
    released: Kept = dataclasses.field(default_factory=Kept)
    repeats: tf.Variable = dataclasses.field(
        default_factory=lambda: tf.Variable(False, trainable=False)
    )
    loosening: tf.Variable = dataclasses.field(
        default_factory=lambda: tf.Variable(
            1.0, trainable=False, dtype=tf.float64
        )
    )

    def loosen(self, *, loose: bool) -> None:
        """Makes the clip too large to change ordinary records, or undoes it."""
        self.loosening.assign(_NO_CLIP if loose else 1.0)

    @override
    def accumulate(
        self,
        state: State,
        sample: Sample,
        variables: list[Any],
        batches: Mapping[str, RecordBatch],
    ) -> Sample:
        loosened = {
            name: _with_clips(own, self.loosening)
            for name, own in state.items()
        }
        return super().accumulate(loosened, sample, variables, batches)

    @override
    def release(
        self,
        sample: Sample,
        state: State,
        variables: list[Any],
        planned: Event,
    ) -> Released:
        self.sums.keep(dict(sample))
        new = super().release(sample, state, variables, planned)
        if self.released._structure is None:
            self.released.keep(new)
        released = tf.cond(
            self.repeats,
            self.released.read,
            lambda: tf.nest.map_structure(tf.identity, new),
        )
        self.released.keep(released)
        return Released(*released)


def _with_clips(state: Any, factor: tf.Variable) -> Any:
    """Returns a state with its clips, at any depth, times a factor."""
    fields = getattr(state, "_fields", None)
    if fields is not None:
        return type(state)(
            **{
                name: part * tf.cast(factor, part.dtype)
                if name == "l2_norm_clip"
                else _with_clips(part, factor)
                for name, part in zip(fields, state, strict=True)
            }
        )
    if isinstance(state, Mapping):
        return {key: _with_clips(part, factor) for key, part in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_with_clips(part, factor) for part in state)
    return state
