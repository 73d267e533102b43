"""Sums of each round, with the noise of a tree over the rounds."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import tensorflow as tf

from keras_dp import _check, _nests, ledger
from keras_dp._override import override
from keras_dp.dp_queries import record_specs as specs_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.gaussian_sum_query import GaussianSumQuery
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.summing_query import SummingQuery, SumParams
from keras_dp.noise import grid, seeds, tree_noise

# 16 million rounds, with a buffer of 24 records.
_DEFAULT_LEVELS = 24
_MOST_LEVELS = 62  # More would overflow int64.


class TreeEvent(NamedTuple):
    """One release of a `TreeResidualSumQuery`.

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
        total: The noise on the sum over the rounds of the tree so far.
    """

    tree_id: tf.Tensor
    noise: tree_noise.TreeNoise
    total: Nest


class TreeResidualState(NamedTuple):
    """The state of a `TreeResidualSumQuery`.

    Attributes:
        secret_tree: The tree of the next round.
    """

    secret_tree: TreeState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class TreeResidualSumQuery(SummingQuery):
    """Sums the clipped records of a round, with noise that partly cancels.

    The noise of round `t` is that of the sum over rounds 1 to `t`, less that of
    the sum over the rounds before. The noise of the former is the noise of at
    most `log2(t) + 1` nodes of a binary tree over the rounds. So an optimizer
    that adds up the answers, as plain SGD does, has the noise of a few nodes
    only. This is DP-FTRL. Use the query in place of a `GaussianSumQuery` if
    records are not sampled, and wrap it in a `NormalizedQuery` for an average.
    `reset_state` starts a new tree; see `RestartQuery`.

    Guarantee: for every node of the tree, adding, removing or zeroing out one
    record of one round moves the sum over the rounds of the node by at most
    `l2_norm_clip` in joint L2 norm, and replacing one by at most twice that, up
    to float rounding as in `GaussianSumQuery`. Each node has Gaussian noise of
    `stddev`, drawn once. The answers add up to sums over the first rounds, and
    follow from these; each of the sums is computed from noised nodes. In the
    ledger, the rounds of one tree have the same `tree_id`, which is random and
    independent of the noise. A record that is not finite counts as zero. After
    `2^max_levels - 1` rounds of a tree, answers are NaN.

    A saved model keeps nothing of the tree. When it is restored, it starts a
    new tree.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on each node, in the record's
            unit.
        record_specs: Nest of `tf.TensorSpec`s: the shapes and dtypes of one
            record.
        max_levels: Number of levels of the tree, in [1, 62]. Each takes the
            memory of one record.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix B. We differ in making the noise only, without their optimizer.

    >>> query = TreeResidualSumQuery(5.0, 0.0, tf.TensorSpec([2]))
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_record(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2])),
    ...     tf.constant([6.0, 8.0]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [3.0, 4.0]
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

    def reset_state(self, global_state: TreeResidualState) -> TreeResidualState:
        """Returns the state with a new tree, which begins in the next round."""
        tree = global_state.secret_tree
        # From the old id, which is no secret, and not from a seed.
        (words,) = seeds.split(tf.tile(tree.tree_id, [2]), 1)
        (seed,) = seeds.split(tree.noise.seed, 1)
        return TreeResidualState(self._tree(words[:2], seed))

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
    def initial_global_state(
        self, seed: int | None = None
    ) -> TreeResidualState:
        # Its id is never from a seed: two runs of one seed are two trees.
        tree = self._tree(seeds.fresh_id(), seeds.fresh(seed))
        return TreeResidualState(tree)

    @override
    def derive_sample_params(
        self, global_state: TreeResidualState
    ) -> SumParams:
        return SumParams(
            tf.constant(self.l2_norm_clip, tf.float64),
            grid.spacing(self.stddev),
        )

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        specs_lib.check_fits(template, self.record_specs)
        return self.record_query.initial_sample_state(template)

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        return self.record_query.bounded_sum(params, like, records, mask)

    @override
    def planned_event(self, global_state: TreeResidualState) -> TreeEvent:
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

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: TreeResidualState
    ) -> QueryResult:
        tree = global_state.secret_tree
        noise, following = self._next_noise(tree)
        change = tf.nest.map_structure(tf.subtract, noise, tree.total)
        answers = grid.answers(
            tf.nest.flatten(sample_state),
            tf.nest.flatten(change),
            tf.constant(self.stddev, tf.float64),
        )
        return QueryResult(
            value=tf.nest.pack_sequence_as(sample_state, answers),
            global_state=TreeResidualState(
                tree._replace(noise=following, total=noise)
            ),
            event=self.planned_event(global_state),
        )

    def _tree(self, tree_id: tf.Tensor, seed: tf.Tensor) -> TreeState:
        """Returns a tree without rounds."""
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, tf.float64),
            _nests.thawed(self.record_specs),
        )
        noise = tree_noise.initial(
            tf.nest.flatten(zeros), self.max_levels, seed
        )
        return TreeState(tree_id, noise, zeros)

    def _next_noise(self, tree: TreeState) -> tuple[Nest, tree_noise.TreeNoise]:
        """Returns the noise of the next sum over all rounds, in steps."""
        like = tf.nest.flatten(tree.total)
        stddev = tf.constant(self.stddev, tf.float64)

        def draw(seed: tf.Tensor) -> list[tf.Tensor]:
            steps, _ = grid.draws(like, stddev, seed)
            return [tf.cast(each, tf.float64) for each in steps]

        noise, following = tree_noise.following(tree.noise, draw)
        return tf.nest.pack_sequence_as(tree.total, noise), following
