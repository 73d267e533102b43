"""Rounds in which phantoms take part: records for audits, made of no data."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp._override import override
from keras_dp.accountants.arrays import Array
from keras_dp.dp_queries import (
    DPQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    NormalizedQuery,
)
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import GradientRecords, ZeroRecords
from keras_dp.ledger import GaussianSum
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Event,
    PrivateRound,
    Released,
    Sample,
    State,
)
from keras_dp.optimizers.record_batch import RecordBatch

# Phantoms are longer than the clip, so that the query has to clip them. With
# automatic clipping only a record that is long against gamma has its norm.
_LENGTH, _LEAST_LENGTH = 2.0, 1e12
_LARGEST_LOG = 700.0


class Phantoms:
    """Records that take part beside the real ones, each in its own coordinate.

    Attributes:
        count: The number of phantoms.
        draws: Yields for each round the phantoms that take part: numbers in
            `[0, count)`, and -1 for padding, int32 `[most]`.
        probability: The probability with which a phantom that is put in takes
            part in a round, in (0, 1].
        present: The phantoms of this round, as `draws` yields them.
    """

    def __init__(
        self,
        count: int,
        probability: float,
        most: int,
        draws: Iterator[npt.NDArray[np.int32]],
    ) -> None:
        """Draws nothing yet.

        Args:
            count: The number of phantoms, >= 1.
            probability: See the attribute.
            most: The most phantoms that take part in one round.
            draws: An endless iterator, see the attribute.
        """
        self.count, self.probability, self.draws = count, probability, draws
        self.present = tf.Variable(
            tf.fill([most], tf.constant(-1, tf.int32)), trainable=False
        )
        self._scores = tf.Variable(
            tf.zeros([count], tf.float64), trainable=False
        )

    def add_to_scores(self, answer: tf.Tensor, multiplier: tf.Tensor) -> None:
        """Adds the answer of a round to the scores.

        Args:
            answer: The noised coordinates of the phantoms, divided by the
                standard deviation of their noise, `[count]`.
            multiplier: The standard deviation of the noise on the sum, divided
                by the bound on a record.
        """
        shift = 1 / multiplier
        log_ratio = tf.cast(answer, tf.float64) * shift - 0.5 * shift**2
        # log(1 - q + q e^r); beyond 700, float64 would overflow.
        rise = tf.math.expm1(tf.minimum(log_ratio, _LARGEST_LOG))
        self._scores.assign_add(tf.math.log1p(self.probability * rise))

    def log_ratios(self) -> Array:
        """Returns the score of each phantom, float64 `[count]`.

        It is the logarithm of the likelihood ratio of all answers so far,
        between "was put in" and "was left out".
        """
        return np.asarray(self._scores)


@dataclasses.dataclass(frozen=True, eq=False)
class PhantomRound(PrivateRound):
    """A round in which phantoms take part.

    Records of the gradients get one more part, a vector with a coordinate for
    each phantom. It is zero for real records, so that their norms and their
    clip stay the same. A phantom is zero in all other parts.

    Guarantee: the guarantee of the queries, as without phantoms. The sum of the
    real records is released with its noise. The vector of the phantoms, which
    depends on no data, is released with independent noise.

    Attributes:
        phantoms: The phantoms.
    """

    phantoms: Phantoms = dataclasses.field(kw_only=True)

    @override
    def prepare(self) -> None:
        self.phantoms.present.assign(next(self.phantoms.draws))

    @override
    def templates(
        self, variables: list[Any], side_templates: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = super().templates(variables, side_templates)
        own = tf.TensorSpec([self.phantoms.count], tf.float32)
        return {**found, GRADIENTS: [*found[GRADIENTS], own]}

    @override
    def accumulate(
        self,
        state: State,
        sample: Sample,
        variables: list[Any],
        batches: Mapping[str, RecordBatch],
    ) -> Sample:
        gradients = batches[GRADIENTS]
        rows = gradients.records[0].squared_norms().shape[0]
        nothing = ZeroRecords(rows, tf.zeros([self.phantoms.count]))
        records = [*gradients.records, nothing]
        batches = {**batches, GRADIENTS: gradients._replace(records=records)}
        return super().accumulate(state, sample, variables, batches)

    @override
    def release(
        self,
        sample: Sample,
        state: State,
        variables: list[Any],
        planned: Event,
    ) -> Released:
        query, phantoms = self.queries[GRADIENTS], self.phantoms
        present = tf.convert_to_tensor(phantoms.present)
        rows = present.shape[0]
        length = tf.maximum(
            _LENGTH * tf.cast(planned[GRADIENTS].l2_norm_bound, tf.float32),
            _LEAST_LENGTH,
        )
        records = [
            *(ZeroRecords(rows, tf.zeros_like(v)) for v in variables),
            _Coordinates(length, present, phantoms.count),
        ]
        with_phantoms = query.accumulate_records(
            query.derive_sample_params(state[GRADIENTS]),
            sample[GRADIENTS],
            records,
            present >= 0,
        )
        released = super().release(
            {**sample, GRADIENTS: with_phantoms}, state, variables, planned
        )
        *gradients, answer = released.gradients
        event = planned[GRADIENTS]
        *_, noise = query.result_noise(
            state[GRADIENTS], released.answers[GRADIENTS]
        )
        phantoms.add_to_scores(
            tf.cast(answer, tf.float64) / noise.scale,
            event.noise_stddev / event.l2_norm_bound,
        )
        answers = {**released.answers, GRADIENTS: gradients}
        return released._replace(gradients=gradients, answers=answers)


class _Coordinates(GradientRecords):
    """Records that each lie along one coordinate axis."""

    def __init__(
        self, length: tf.Tensor, places: tf.Tensor, count: int
    ) -> None:
        self._lengths = tf.fill(places.shape, length)
        self._places, self._count = tf.maximum(places, 0), count

    @override
    def squared_norms(self) -> tf.Tensor:
        return tf.square(self._lengths)

    @override
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        values = self._lengths * tf.cast(weights, self._lengths.dtype)
        return tf.math.unsorted_segment_sum(values, self._places, self._count)

    @override
    def materialize(self) -> tf.Tensor:
        unit = tf.one_hot(self._places, self._count, dtype=tf.float32)
        return self._lengths[:, tf.newaxis] * unit

    @override
    def take(self, indices: tf.Tensor) -> GradientRecords:
        raise NotImplementedError(
            "Phantoms must be summed all at once. Call weighted_sum."
        )

    @override
    def grouped(self, size: int, weights: tf.Tensor) -> GradientRecords:
        raise NotImplementedError(
            "Phantoms must be single records. Audit without microbatches."
        )


def check_query(optimizer: DPOptimizer) -> DPQuery:
    """Returns the query of an optimizer, if phantoms can be its records.

    Raises:
        PrivateTrainingError: The query is no Gaussian sum or average, or the
            variables are in groups.
    """
    query, groups = optimizer.query, optimizer.groups
    if groups is not None or not _is_plain(query):
        raise PrivateTrainingError(
            "Phantom canaries must be answered by a Gaussian sum or "
            f"average of all variables. Received: query={query!r}, "
            f"groups={groups!r}. Audit the same training with "
            "GaussianAverageQuery, or by input canaries."
        )
    return query


def _is_plain(query: DPQuery) -> bool:
    """Returns whether a query adds Gaussian noise to one clipped vector."""
    while isinstance(query, NormalizedQuery):
        query = query.inner
    if type(query) not in (GaussianSumQuery, GaussianAverageQuery):
        return False
    state = query.initial_global_state()
    (event,) = query.ledger_events(query.planned_event(state))
    return isinstance(event, GaussianSum) and event.noise_stddev > 0
