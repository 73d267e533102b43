"""The base class of queries whose noise comes from a tree over the rounds."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check, _nests, ledger
from keras_dp.dp_queries import record_specs as specs_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    zeros_like_record,
)
from keras_dp.dp_queries.gaussian_sum_query import GaussianSumQuery
from keras_dp.dp_queries.summing_query import SummingQuery, empty_sum
from keras_dp.noise import seeds, tree_noise

# 16 million rounds, with a buffer of 24 records.
_DEFAULT_LEVELS = 24
_MOST_LEVELS = 62  # More would overflow int64.


class TreeEvent(NamedTuple):
    """One release of a query on a tree.

    Attributes:
        l2_norm_bound: Scalar float64.
        noise_stddev: Noise on each node, scalar float64.
        tree_id: Shape `[2]`, int64.
    """

    l2_norm_bound: tf.Tensor
    noise_stddev: tf.Tensor
    tree_id: tf.Tensor


class TreeState(NamedTuple):
    """A tree with its noise, which is never saved.

    Attributes:
        tree_id: Shape `[2]`, int64. Public, and independent of the noise.
        noise: The noise of the nodes.
        base: A value that the query keeps from the start of the tree.
        total: A value that the query updates in each round.
    """

    tree_id: tf.Tensor
    noise: tree_noise.TreeNoise
    base: Nest
    total: Nest


@dataclasses.dataclass(frozen=True, slots=True)
class TreeQuery(SummingQuery):
    """Sums the clipped records of rounds, with noise from a tree over them.

    Attributes: see `TreeCumulativeSumQuery`.
    """

    l2_norm_clip: float
    stddev: float
    record_specs: Nest
    max_levels: int = _DEFAULT_LEVELS

    def __post_init__(self) -> None:
        checked = self.record_query  # It checks the clip and the noise.
        _check.integer_at_least(1, max_levels=self.max_levels)
        if self.max_levels > _MOST_LEVELS:
            raise ValueError(
                f"`max_levels` must be <= {_MOST_LEVELS}. "
                f"Received: max_levels={self.max_levels!r}."
            )
        for field, value in {
            "l2_norm_clip": checked.l2_norm_clip,
            "stddev": checked.stddev,
            "record_specs": specs_lib.normalized(self.record_specs),
            "max_levels": int(self.max_levels),
        }.items():
            object.__setattr__(self, field, value)

    @classmethod
    def build_l2_gaussian_query(
        cls,
        l2_norm_clip: float,
        noise_multiplier: float,
        record_specs: Nest,
    ) -> Self:
        """Returns the query with a noise multiplier instead of a stddev.

        Args:
            l2_norm_clip: Bound on one record's norm, in the record's unit, > 0.
            noise_multiplier: Standard deviation of the noise on each node,
                divided by `l2_norm_clip`, >= 0.
            record_specs: Nest of `tf.TensorSpec`s: the shapes and dtypes of
                one record.
        """
        _check.finite_positive(l2_norm_clip=l2_norm_clip)
        _check.finite_non_negative(noise_multiplier=noise_multiplier)
        stddev = l2_norm_clip * noise_multiplier
        return cls(l2_norm_clip, stddev, record_specs)

    @abc.abstractmethod
    def reset_state(self, noised_results: Nest, global_state: Any) -> Any:
        """Returns the state with a new tree, which starts with the next round.

        Args:
            noised_results: The `value` of the last release.
            global_state: The state after the last release.
        """

    @override
    def get_config(self) -> dict[str, Any]:
        specs = specs_lib.to_config(self.record_specs)
        return {**DPQuery.get_config(self), "record_specs": specs}

    @classmethod
    @override
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        specs = specs_lib.from_config(config["record_specs"])
        return cls(**{**config, "record_specs": specs})

    @property
    def record_query(self) -> GaussianSumQuery:
        """The query that bounds and sums the records of one round."""
        return GaussianSumQuery(self.l2_norm_clip, self.stddev)

    @override
    def derive_sample_params(self, global_state: Any) -> tf.Tensor:
        return tf.constant(self.l2_norm_clip, tf.float64)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        specs_lib.check_fits(template, self.record_specs)
        return empty_sum(template)

    @override
    def bounded_sum(
        self,
        params: tf.Tensor,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        return self.record_query.bounded_sum(params, like, records, mask)

    @override
    def planned_event(self, global_state: Any) -> TreeEvent:
        return TreeEvent(
            tf.constant(self.l2_norm_clip, tf.float64),
            tf.constant(self.stddev, tf.float64),
            global_state.secret_tree.tree_id,
        )

    @override
    def ledger_events(
        self, event: TreeEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        words = (int(word) % 2**64 for word in event.tree_id)
        return (
            ledger.TreeSum(
                name=name,
                l2_norm_bound=float(event.l2_norm_bound),
                noise_stddev=float(event.noise_stddev),
                tree_id="".join(f"{word:016x}" for word in words),
            ),
        )


def first_tree(query: TreeQuery, seed: int | None) -> TreeState:
    """Returns a tree without rounds."""
    zeros = zeros_like_record(_nests.thawed(query.record_specs))
    return TreeState(
        # Never from a seed: two runs of one seed are two trees to a ledger.
        tree_id=seeds.fresh_id(),
        noise=tree_noise.initial(
            tf.nest.flatten(zeros), query.max_levels, seeds.fresh(seed)
        ),
        base=zeros,
        total=zeros,
    )


def next_tree(query: TreeQuery, tree: TreeState) -> TreeState:
    """Returns a tree without rounds, with a new id and new noise."""
    # From the old id, which is no secret: see `first_tree`.
    (words,) = seeds.split(tf.tile(tree.tree_id, [2]), 1)
    (seed,) = seeds.split(tree.noise.seed, 1)
    like = tf.nest.flatten(tree.total)
    return TreeState(
        tree_id=words[:2],
        noise=tree_noise.initial(like, query.max_levels, seed),
        base=tf.nest.map_structure(tf.zeros_like, tree.base),
        total=tf.nest.map_structure(tf.zeros_like, tree.total),
    )


def next_noise(
    query: TreeQuery, tree: TreeState
) -> tuple[Nest, tree_noise.TreeNoise]:
    """Returns the noise of the next sum over all rounds of the tree."""
    like = tf.nest.flatten(tree.total)
    stddev = tf.constant(query.stddev, tf.float64)

    def draw(seed: tf.Tensor) -> list[tf.Tensor]:
        return [
            seeds.normal(leaf, own, stddev)
            for leaf, own in zip(
                like, seeds.split(seed, len(like)), strict=True
            )
        ]

    noise, following = tree_noise.following(tree.noise, draw)
    return tf.nest.pack_sequence_as(tree.total, noise), following
