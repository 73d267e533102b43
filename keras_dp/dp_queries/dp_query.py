"""The protocol of all queries: state in, state out, and the cost returned."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.saving import Configured
from keras_dp.noise import grid

Nest = Any  # A nest as `keras.tree` understands it, with tensors as leaves.


class QueryResult(NamedTuple):
    """One release: the answer, the next state, and the event.

    Attributes:
        value: The noised answer.
        global_state: The state for the next round.
        event: Nest of scalar tensors that says what was released.
            `DPQuery.ledger_events` turns it into events for the ledger.
    """

    value: Nest
    global_state: Nest
    event: Nest


class LeafNoise(NamedTuple):
    """The noise on each coordinate of a leaf: a draw of `family` times `scale`.

    The family has the scale 1, and `scale` is a scalar tensor of float64, >= 0.
    Leaves that one query answers together have an equal `part`.
    """

    family: ledger.NoiseDistribution
    scale: tf.Tensor
    part: str = ""


class Mechanism(NamedTuple):
    """A query that adds noise itself, with its states in one round.

    `sample_state` is the sum before noise, whose records the event bounds.
    `global_state` is the state before the release.
    """

    query: "DPQuery"
    sample_state: Nest
    global_state: Nest


class DPQuery(Configured, abc.ABC):
    """A mechanism that answers a sum over the records of one sample.

    A round goes through four steps (McMahan et al. 2018, arXiv:1812.06210):

    1. `derive_sample_params(global_state)` returns the public values, such as
       a clip, by which the records of this round are bounded;
    2. `initial_sample_state(template)` returns an empty sum;
    3. `accumulate_records` bounds each record of a batch, and adds them to the
       sum; `accumulate_record` does so for one record;
    4. `get_noised_result` adds noise, and returns a `QueryResult`.

    A query is a frozen value, and its fields are public. Everything that
    changes is in the states. Secrets (records, samples, seeds) are passed as
    arguments, and never kept in the query.
    """

    @abc.abstractmethod
    def initial_global_state(self, seed: int | None = None) -> Nest:
        """Returns the state before the first round.

        Args:
            seed: An integer >= 0 that makes the noise reproducible inside
                `reproducible()`, for tests. Anywhere else it has no effect: the
                operating system gives the key of the noise.
        """

    @abc.abstractmethod
    def derive_sample_params(self, global_state: Nest) -> Nest:
        """Returns the public values by which records are bounded in a round.

        Args:
            global_state: The state before the round.
        """

    @abc.abstractmethod
    def initial_sample_state(self, template: Nest) -> Nest:
        """Returns the state of an empty sample.

        Args:
            template: Nest of tensors, variables or `tf.TensorSpec`s of the
                shape and dtype of one record.
        """

    def accumulate_record(
        self, params: Nest, sample_state: Nest, record: Nest
    ) -> Nest:
        """Bounds one record, and returns the sample state plus this record.

        Args:
            params: The result of `derive_sample_params`.
            sample_state: The sum so far.
            record: Nest of the structure of the template.
        """
        batch = keras.tree.map_structure(
            lambda leaf: tf.convert_to_tensor(leaf)[tf.newaxis], record
        )
        return self.accumulate_records(params, sample_state, batch)

    @abc.abstractmethod
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        """Bounds a batch of records, and returns the sample state plus these.

        Args:
            params: The result of `derive_sample_params`.
            sample_state: The sum so far.
            records: Nest with leaves `[batch, ...]` or `LazyRecords`. The
                batch may be empty.
            mask: Boolean, shape `[batch]`: false for padding, that is for rows
                that hold no record. By default every row holds a record.
        """

    @abc.abstractmethod
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        """Returns the state of the union of two samples without common records.

        Args:
            state_1: The sum over the first sample.
            state_2: The sum over the second sample.
        """

    @abc.abstractmethod
    def planned_event(self, global_state: Nest) -> Nest:
        """Returns the event that the next `get_noised_result` will return.

        The event depends on public values only. So a ledger can record a round
        before it runs.

        Args:
            global_state: The state before the round.
        """

    @abc.abstractmethod
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        """Returns the noised answer for the sample, and the event.

        An empty sample is allowed: its answer is noise only.

        Args:
            sample_state: The finished sum over the sample.
            global_state: The state before the round.
        """

    @abc.abstractmethod
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        """Returns the events to record in a ledger for one release.

        Args:
            event: A `QueryResult.event`, or the result of `planned_event`, made
                of tensors with values, not in a graph.
            name: The name of the records in the ledger. In a nest of queries,
                the path of each leaf query is appended.
        """

    def mechanisms(
        self, sample_state: Nest, global_state: Nest
    ) -> list[Mechanism]:
        """Returns the mechanisms behind `ledger_events`, one for each event.

        An audit compares the sum of each mechanism with the bound in its event.

        Args:
            sample_state: The finished sum over a sample.
            global_state: The state before the release.
        """
        return [Mechanism(self, sample_state, global_state)]

    @property
    def adapts(self) -> bool:
        """Whether `planned_event` may differ from one round to the next.

        If so, each round must be recorded in the ledger by itself, before it
        runs.
        """
        return False

    @property
    def is_proven(self) -> bool:
        """Whether it has a bound that holds in floating point."""
        return False

    def coming_events(
        self, global_state: Nest
    ) -> list[tuple[Nest, int]] | None:
        """Returns the events of all rounds to come, if they are fixed already.

        Args:
            global_state: The state before the first of these rounds.

        Returns:
            Pairs of an event, as `planned_event` returns it, and the number of
            rounds in a row that have it; after them no round can be released.
            `None` if the rounds have no end, or events follow from answers.
        """
        del global_state
        return None

    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        """Returns the distribution of the noise in `value`.

        Queries that post-process an answer need it.

        Args:
            global_state: The state *before* the release of `value`.
            value: The `QueryResult.value`.

        Returns:
            One `LeafNoise` for each leaf of `value`, in order.

        Raises:
            TypeError: The query does not know its noise, or the noise is not
                independent with one distribution in each leaf.
        """
        del global_state, value
        raise TypeError(
            f"`{type(self).__name__}` must have independent noise of one "
            "distribution in each leaf, and say which (`result_noise`), before "
            "another query can correct its answers. It does not say so. Use "
            "another query inside, such as a GaussianSumQuery."
        )

    def derive_metrics(self, global_state: Nest) -> dict[str, tf.Tensor]:
        """Returns public scalars of the state, such as the clip, by name.

        Args:
            global_state: The state before or after a round.
        """
        del global_state
        return {}


def gaussian_variances(
    query: DPQuery, global_state: Nest, value: Nest
) -> list[tf.Tensor] | None:
    """Returns the variance of the noise on a coordinate, for each leaf.

    It is `None` if the noise is not known, not Gaussian, or not independent
    with one variance in each leaf. The state is the one before the release.
    """
    try:
        noise = query.result_noise(global_state, value)
    except TypeError:
        return None
    gaussian = [isinstance(own.family, ledger.GaussianNoise) for own in noise]
    if not noise or not all(gaussian):
        return None
    # Leaves that share a scale share the operation.
    squares = {id(own.scale): tf.square(own.scale) for own in noise}
    return [squares[id(own.scale)] for own in noise]


def divided(nest: Nest, divisors: list[float]) -> Nest:
    """Returns a nest with each leaf divided by its own number, as floats."""

    def one(leaf: Any, divisor: float) -> tf.Tensor:
        leaf = tf.convert_to_tensor(leaf)
        if not leaf.dtype.is_floating:
            leaf = tf.cast(leaf, tf.float64)
        return leaf if divisor == 1 else leaf / tf.constant(divisor, leaf.dtype)

    pairs = zip(keras.tree.flatten(nest), divisors, strict=True)
    return keras.tree.pack_sequence_as(nest, [one(*pair) for pair in pairs])


def add(sample_state: Nest, contribution: Nest) -> Nest:
    """Returns the sum of two nests, leaf by leaf, without broadcasting."""

    def added(total: Any, part: Any) -> tf.Tensor:
        total = tf.convert_to_tensor(total)
        part = tf.convert_to_tensor(part)
        if total.dtype.is_integer and not part.dtype.is_integer:
            raise TypeError(
                "The sum of a batch must be integers, steps of the grid, where "
                f"the sample state is {total.dtype.name}. Received: "
                f"{part.dtype.name}. Round it with the query's `bounded_sum`."
            )
        part = records_lib.with_shape_of(
            total,
            tf.cast(part, total.dtype),
            "records",
            "the template's shape",
        )
        return (
            grid.added(total, part) if total.dtype == tf.int64 else total + part
        )

    check_structure(sample_state, contribution)
    return keras.tree.map_structure(added, sample_state, contribution)


def check_structure(like: Nest, records: Nest) -> None:
    """Raises unless records, or their sum, have the template's structure."""
    try:
        keras.tree.assert_same_structure(like, records)
    except (TypeError, ValueError):
        # The message of `keras.tree` would show values.
        raise ValueError(
            "`records` must have the structure of the template, which is "
            f"{_shapes(like)}. Received: {_shapes(records)}."
        ) from None


def _shapes(nest: Nest) -> Nest:
    return keras.tree.map_structure(
        lambda leaf: tuple(getattr(leaf, "shape", ())), nest
    )
