"""The protocol of all queries: state in, state out, and the cost returned."""

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.saving import Configured

Nest = Any  # A nest as `tf.nest` understands it, with tensors as leaves.


class QueryResult(NamedTuple):
    """One release: the answer, the next state, and the cost.

    Attributes:
        value: The private answer.
        global_state: To be used in the next round.
        event: Nest of scalar tensors that says what was released. Turn it
            into ledger events with `DPQuery.ledger_events`.
    """

    value: Nest
    global_state: Nest
    event: Nest


class GaussianEvent(NamedTuple):
    """The numbers of one Gaussian release, as float64 scalar tensors."""

    l2_norm_bound: tf.Tensor
    noise_stddev: tf.Tensor


class LeafNoise(NamedTuple):
    """The noise on every coordinate of one leaf of an answer.

    Attributes:
        family: Distribution of the noise at scale 1.
        scale: Factor of the noise, scalar float64 tensor.
        group: Equal for leaves that one query answers as one vector.
    """

    family: ledger.NoiseDistribution
    scale: tf.Tensor
    group: str = ""


class Mechanism(NamedTuple):
    """A query that adds its own noise, in one round.

    Attributes:
        query: Makes one ledger event.
        sample_state: The sum that its event bounds.
        global_state: The state before the release.
    """

    query: "DPQuery"
    sample_state: Nest
    global_state: Nest


class DPQuery(Configured, abc.ABC):
    """A mechanism that answers a sum over the records of one sample.

    A round goes through five steps (McMahan et al. 2018, arXiv:1812.06210):

    1. `derive_sample_params(global_state)` gives what records are prepared by;
    2. `initial_sample_state(template)` starts an empty sum;
    3. `preprocess_record` bounds one record, and
    4. `accumulate_preprocessed_record` adds it: `accumulate_record` does both
       for one record, `accumulate_records` for a batch of them;
    5. `get_noised_result` adds noise and returns a `QueryResult`.

    A query is a frozen value: its fields are public, all that changes is in
    the states, and secrets (records, samples, seeds) are only arguments.
    """

    @abc.abstractmethod
    def initial_global_state(self, seed: int | None = None) -> Nest:
        """Returns the state before the first round.

        Args:
            seed: Makes the noise reproducible inside `reproducible()`, for
                tests. Else noise is keyed by the operating system.
        """

    @abc.abstractmethod
    def derive_sample_params(self, global_state: Nest) -> Nest:
        """Returns what `preprocess_record` needs, fixed during a round."""

    @abc.abstractmethod
    def initial_sample_state(self, template: Nest) -> Nest:
        """Returns the state of an empty sample.

        Args:
            template: Nest of tensors, variables or `tf.TensorSpec`s of the
                shape and dtype of one record.
        """

    @abc.abstractmethod
    def preprocess_record(self, params: Nest, record: Nest) -> Nest:
        """Returns one record, bounded."""

    @abc.abstractmethod
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        """Returns the sample state with one preprocessed record added."""

    def accumulate_record(
        self, params: Nest, sample_state: Nest, record: Nest
    ) -> Nest:
        """Returns the sample state with one record, bounded, added."""
        return self.accumulate_preprocessed_record(
            sample_state, self.preprocess_record(params, record)
        )

    @abc.abstractmethod
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        """Returns the sample state with a batch of records, bounded, added.

        Args:
            params: From `derive_sample_params`.
            sample_state: From `initial_sample_state` or the last call.
            records: Nest with leaves `[batch, ...]` or `LazyRecords`. The
                batch may be empty.
            mask: Shape `[batch]`, boolean: false for padding, which counts as
                no record. By default all are records.
        """

    @abc.abstractmethod
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        """Returns the state of the union of two disjoint samples."""

    @abc.abstractmethod
    def planned_event(self, global_state: Nest) -> Nest:
        """Returns the event that the next `get_noised_result` will return.

        It follows from the public state alone, so that a ledger can cover a
        round before it runs.
        """

    @abc.abstractmethod
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        """Returns the noised answer for the sample, and what it cost.

        An empty sample is legal and releases noise only.
        """

    @abc.abstractmethod
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        """Returns the ledger's events for a `QueryResult.event`.

        Args:
            event: A `QueryResult.event` or `planned_event`, with values.
            name: Name of the records; leaf queries of a nest extend it.
        """

    def mechanisms(
        self, sample_state: Nest, global_state: Nest
    ) -> list[Mechanism]:
        """Returns what each of `ledger_events` is the event of, in order.

        An auditor compares the sum in it with the bound in the event.

        Args:
            sample_state: A finished sample.
            global_state: The state that it is released with.
        """
        return [Mechanism(self, sample_state, global_state)]

    @property
    def adapts(self) -> bool:
        """Whether `planned_event` may differ from one round to the next.

        A ledger then has to be asked anew before every round.
        """
        return False

    @property
    def seeded(self) -> bool:
        """Whether the configuration holds a seed of the noise, for tests."""
        return False

    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        """Returns the noise in `value`, for post-processing to know.

        Args:
            global_state: The state *before* the release of `value`.
            value: The `QueryResult.value`.

        Returns:
            One for each of `tf.nest.flatten(value)`, in order.

        Raises:
            TypeError: The noise is not independent, or not of one distribution
                in each leaf.
        """
        del global_state, value
        raise TypeError(
            f"`{type(self).__name__}` must have independent noise of one "
            "distribution in each leaf to be corrected for it. It does not "
            "say that it has."
        )

    def derive_metrics(self, global_state: Nest) -> dict[str, tf.Tensor]:
        """Returns public scalars of the state worth watching, by name."""
        del global_state
        return {}


def zeros_like_record(template: Nest) -> Nest:
    """Returns zeros of the shape and dtype of each leaf of `template`.

    Half precision is summed up in float32: rounded to 8 bits, one record could
    move a large sum by many times its bound, or not at all.
    """

    def zeros(leaf: Any) -> tf.Tensor:
        if not hasattr(leaf, "dtype"):
            leaf = tf.convert_to_tensor(leaf)
        dtype = tf.as_dtype(leaf.dtype)
        half = dtype.is_floating and dtype not in {tf.float32, tf.float64}
        return tf.zeros(leaf.shape, tf.float32 if half else dtype)

    if not tf.nest.flatten(template):
        raise ValueError(
            "`template` must have at least one leaf. Received: an empty "
            f"{type(template).__name__}."
        )
    return tf.nest.map_structure(zeros, template)


def add(sample_state: Nest, contribution: Nest) -> Nest:
    """Returns the sum of two nests, leaf by leaf, without broadcasting."""

    def added(total: Any, part: Any) -> tf.Tensor:
        total = tf.convert_to_tensor(total)
        part = tf.cast(part, total.dtype)
        return total + records_lib.with_shape_of(
            total, part, "records", "the template's shape"
        )

    check_structure(sample_state, contribution)
    return tf.nest.map_structure(added, sample_state, contribution)


def check_structure(like: Nest, records: Nest) -> None:
    """Raises unless records, or their sum, have the template's structure."""
    try:
        tf.nest.assert_same_structure(like, records)
    except (TypeError, ValueError):
        # The message of `tf.nest` would show values.
        raise ValueError(
            "`records` must have the structure of the template, which is "
            f"{_shapes(like)}. Received: {_shapes(records)}."
        ) from None


def _shapes(nest: Nest) -> Nest:
    return tf.nest.map_structure(
        lambda leaf: tuple(getattr(leaf, "shape", ())), nest
    )
