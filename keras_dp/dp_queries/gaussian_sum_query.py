"""Gaussian sums of clipped records."""

import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    GaussianEvent,
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.proven_sum import (
    check_provable,
    checked_precision,
    proven_sum,
)
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.summing_query import (
    SummingQuery,
    SumParams,
    empty_steps,
    empty_sum,
    on_grid,
)
from keras_dp.noise import grid, seeds

# Noise is at least a million times the smallest float32.
_SMALLEST_STDDEV = 1e-30
# In units of the clip: sums of 128 records are below 2^27 standard deviations.
_SMALLEST_MULTIPLIER = 2.0**-20
# Ten times as much is still finite.
_LARGEST_STDDEV = 1e37
# Gammas are well above norms whose squares float32 rounds to 0.
_SMALLEST_GAMMA, _LARGEST_GAMMA = 1e-12, 1e6
# Answers are multiplied and divided by such numbers without loss.
_LARGEST_UNIT = 1e20


class GaussianGlobalState(NamedTuple):
    """The state of a `GaussianSumQuery`: public numbers, and the secret seed.

    Attributes:
        l2_norm_clip: Scalar float64.
        stddev: Scalar float64.
        seed: See `seeds.fresh`. Never saved.
    """

    l2_norm_clip: tf.Tensor
    stddev: tf.Tensor
    seed: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class GaussianSumQuery(SummingQuery):
    """Sums records clipped to an L2 norm, and adds Gaussian noise.

    A record may be a nest of tensors. Its *joint* norm is the norm of all its
    tensors together, as one long vector.

    By default a record is clipped: if its norm is larger than the clip `C`, it
    is multiplied by `C / norm`. With a `gamma` every record is multiplied by
    `C / (norm + gamma)` instead (automatic clipping). All records that are long
    against `gamma` then have nearly the norm `C`. So `C` only sets the scale of
    the answer, like a learning rate, and need not be tuned.

    Guarantee: adding, removing or zeroing out one record moves the sum before
    noise by at most `l2_norm_clip` in joint L2 norm, and replacing one by at
    most twice that, for every record. This holds up to float rounding, a
    relative 1e-6 for tensors in float32; the clip is not lowered to make up for
    it. A record that is not finite, or whose norm is not, counts as zero. The
    answer is float64 if the template is, and float32 otherwise. The sum of each
    batch is rounded to integers, steps of a grid, and so is the noise. So sums
    of batches and replicas add up in any order, and the low bits of the answer
    tell nothing of the sum; see `grid`. Sums are cut off at 2^27 standard
    deviations of the noise. The bound of the event does not charge
    for the rounding of a batch.

    With `precision="proven"` the bound holds without "up to": for all records
    in float32, every order of addition and every device, what one record moves
    is at most `l2_norm_clip`, rounding included. It is a theorem about the
    program; `docs/finite_precision.md` has the proof, and what it assumes.
    Norms are then bounded from above, sums are added in blocks and in float64,
    and the clip gives up the part that rounding takes: 0.2 % of it in blocks of
    128 records. The ledger says so in its event.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on the sum, in the record's
            unit: 0, or in [1e-30, 1e37] and at least 2^-20 times the clip. At 0
            the sum is released without noise, and every accountant says
            epsilon = inf. Less noise would cut sums off, or be rounded away.
        noise_multiplier: The ratio `stddev / l2_norm_clip`, which decides what
            a round costs. Give either this or `stddev`.
        gamma: `None` to clip, or a number for automatic clipping: the norm, in
            the record's unit, at which a record has half of its influence, in
            [1e-12, 1e6]. 0.01 in the paper. `l2_norm_clip / gamma` must be at
            most 1e20.
        rescale: Whether the answer is divided by `l2_norm_clip`. It is then in
            units of the clip: each record adds at most 1, and a learning rate
            that was found at one clip holds at another, as far as that one
            clips the same records. The clip must be in [1e-20, 1e20].
        precision: "proven", or "assumed" for the guarantee up to rounding.

    Raises:
        TypeError: Both or neither of `stddev` and `noise_multiplier` are given.
        ValueError: A number is negative, not finite, or out of its range.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, Algorithm 1, without its
    division by the lot size; Bu et al. (2022), arXiv:2206.07136v3, "AUTO-S",
    for `gamma`; De et al. (2022), arXiv:2204.13650v2, for `rescale`.

    >>> query = GaussianSumQuery(l2_norm_clip=5.0, stddev=0.0)
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state(tf.zeros([2]))
    >>> sample = query.accumulate_record(params, sample, tf.constant([6., 8.]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [3.0, 4.0]
    """

    l2_norm_clip: float
    stddev: float
    gamma: float | None
    rescale: bool
    precision: str

    def __init__(
        self,
        l2_norm_clip: float,
        stddev: float | None = None,
        *,
        noise_multiplier: float | None = None,
        gamma: float | None = None,
        rescale: bool = False,
        precision: str = "assumed",
    ) -> None:
        _check.finite_non_negative(l2_norm_clip=l2_norm_clip)
        stddev = stddev_from(l2_norm_clip, noise_multiplier, stddev=stddev)
        set_fields(
            self,
            l2_norm_clip=float(l2_norm_clip),
            stddev=float(stddev),
            gamma=checked_gamma(gamma, l2_norm_clip),
            rescale=checked_rescale(l2_norm_clip, rescale=rescale),
            precision=checked_precision(precision, stddev),
        )

    @property
    def noise_multiplier(self) -> float:
        """The stddev of the noise, divided by the bound on one record."""
        return ratio(self.stddev, self.l2_norm_clip)

    @property
    @override
    def is_proven(self) -> bool:
        return self.precision == "proven"

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> GaussianGlobalState:
        return GaussianGlobalState(
            l2_norm_clip=tf.constant(self.l2_norm_clip, tf.float64),
            stddev=tf.constant(self.stddev, tf.float64),
            seed=seeds.fresh(seed),
        )

    @override
    def derive_sample_params(
        self, global_state: GaussianGlobalState
    ) -> SumParams:
        return SumParams(
            global_state.l2_norm_clip, grid.spacing(global_state.stddev)
        )

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        if not self.stddev:
            return empty_sum(template)
        empty = empty_steps(template)
        if self.is_proven:
            check_provable(empty)
        return empty

    @override
    def planned_event(self, global_state: GaussianGlobalState) -> GaussianEvent:
        return GaussianEvent(global_state.l2_norm_clip, global_state.stddev)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        noised, following = grid.noised(
            tf.nest.flatten(sample_state),
            global_state.stddev,
            global_state.seed,
            unit=global_state.l2_norm_clip if self.rescale else 1.0,
        )
        return QueryResult(
            value=tf.nest.pack_sequence_as(sample_state, noised),
            global_state=global_state._replace(seed=following),
            event=self.planned_event(global_state),
        )

    @override
    def ledger_events(
        self, event: GaussianEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        kind = ledger.GaussianSum
        if self.is_proven:
            kind = ledger.ProvenGaussianSum
        return (
            kind(
                name=name,
                l2_norm_bound=float(event.l2_norm_bound),
                noise_stddev=float(event.noise_stddev),
            ),
        )

    @override
    def result_noise(
        self, global_state: GaussianGlobalState, value: Nest
    ) -> list[LeafNoise]:
        scale = global_state.stddev
        if self.rescale:
            scale = scale / global_state.l2_norm_clip
        noise = LeafNoise(ledger.GaussianNoise(1.0), scale)
        return [noise for _ in tf.nest.flatten(value)]

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        if self.is_proven:
            return proven_sum(like, records, params, mask, self.gamma)
        clip, spacing = params
        norms = records_lib.norms(tf.nest.flatten(records))
        sums = records_lib.clipped_sum(records, norms, clip, mask, self.gamma)
        return on_grid(like, sums, spacing)


def stddev_from(
    l2_norm_clip: float,
    noise_multiplier: float | None,
    denominator: float | None = None,
    **stddev: float | None,
) -> float:
    """Returns the stddev of the noise, from itself or the noise multiplier.

    Args:
        l2_norm_clip: Bound on one record's norm.
        noise_multiplier: The stddev over `l2_norm_clip`, or `None`.
        denominator: How many records a sum has about; `None` if nobody knows.
        **stddev: The stddev under the name of its argument, or `None`.

    Raises:
        TypeError: Both or neither of the two are given.
        ValueError: The stddev is neither 0 nor in [1e-30, 1e37]; or so small
            that the grid would cut the sum off.
    """
    ((name, given),) = stddev.items()
    if (given is None) == (noise_multiplier is None):
        raise TypeError(
            f"`{name}` or `noise_multiplier` must be given, and not both. "
            f"Received: {name}={given!r}, "
            f"noise_multiplier={noise_multiplier!r}."
        )
    if noise_multiplier is not None:
        _check.finite_non_negative(noise_multiplier=noise_multiplier)
    if given is None:
        given = (noise_multiplier or 0.0) * l2_norm_clip
    _check.finite_non_negative(**{name: given})
    if given and not _SMALLEST_STDDEV <= given <= _LARGEST_STDDEV:
        raise ValueError(
            f"`{name}` must be 0, or in [{_SMALLEST_STDDEV}, "
            f"{_LARGEST_STDDEV}]. Received: {name}={given!r}."
        )
    least = max(_SMALLEST_MULTIPLIER, 2.0**-26 * (denominator or 0))
    if 0 < given < least * l2_norm_clip:
        raise ValueError(
            f"`noise_multiplier` must be 0 or at least {least:.3g}. Received: "
            f"{name}={given:.3g} for the clip {l2_norm_clip:g}. Sums are cut "
            "off at 2^27 standard deviations of their noise, and with so "
            "little of it some would be. 0 trains without noise, to compare "
            "with."
        )
    return given


def checked_gamma(gamma: float | None, l2_norm_clip: float) -> float | None:
    """Returns a gamma, or `None`.

    Args:
        gamma: See `GaussianSumQuery`.
        l2_norm_clip: Bound on one record's norm.

    Raises:
        ValueError: It is out of its range, or too small for the clip.
    """
    if gamma is None:
        return None
    _check.finite_positive(gamma=gamma)
    if (
        not _SMALLEST_GAMMA <= gamma <= _LARGEST_GAMMA
        or l2_norm_clip > _LARGEST_UNIT * gamma
    ):
        raise ValueError(
            f"`gamma` must be in [{_SMALLEST_GAMMA}, {_LARGEST_GAMMA:g}], and "
            f"at least l2_norm_clip / {_LARGEST_UNIT:g}, to stay in the range "
            f"of float32. Received: gamma={gamma!r} with "
            f"l2_norm_clip={l2_norm_clip!r}. Take gamma=0.01."
        )
    return float(gamma)


def checked_rescale(l2_norm_clip: float, *, rescale: bool) -> bool:
    """Returns whether answers are divided by the clip.

    Raises:
        TypeError: `rescale` is no boolean.
        ValueError: No answer can be divided by such a clip.
    """
    _check.boolean(rescale=rescale)
    if rescale and not 1 / _LARGEST_UNIT <= l2_norm_clip <= _LARGEST_UNIT:
        raise ValueError(
            f"`l2_norm_clip` must be in [{1 / _LARGEST_UNIT}, "
            f"{_LARGEST_UNIT}] with rescale=True, which divides answers by it. "
            f"Received: l2_norm_clip={l2_norm_clip!r}."
        )
    return rescale


def ratio(stddev: float, l2_norm_clip: float) -> float:
    """Returns the noise multiplier; infinite if the clip is 0."""
    return stddev / l2_norm_clip if l2_norm_clip else math.inf
