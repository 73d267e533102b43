"""All Gaussian sums of bounded records share this class."""

import abc
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    LeafNoise,
    Nest,
    QueryResult,
    divided,
)
from keras_dp.dp_queries.gaussian.proven_sum import (
    check_provable,
    checked_precision,
    proven_sum,
)
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

    The numbers are scalars of float64. The seed is never saved.
    """

    l2_norm_clip: tf.Tensor
    stddev: tf.Tensor
    seed: tf.Tensor


class GaussianEvent(NamedTuple):
    """The bound on one record, and the noise on the sum, as float64 scalars."""

    l2_norm_bound: tf.Tensor
    noise_stddev: tf.Tensor


class GaussianQuery(SummingQuery):
    """Sums records of bounded norm, adds Gaussian noise, and divides.

    A subclass says how much noise there is (`noise_stddev`). It may divide the
    leaves of records by scales before they are clipped (`scales_of`), and the
    answer by a public number (`divisor`). Its fields are those of
    `GaussianSumQuery`.
    """

    __slots__ = ()

    l2_norm_clip: float
    gamma: float | None = None
    rescale: bool = False
    precision: str

    @property
    @abc.abstractmethod
    def noise_stddev(self) -> float:
        """Standard deviation of the noise on the sum."""

    @property
    def noise_multiplier(self) -> float:
        """The stddev of the noise, divided by the bound on one record."""
        clip = self.l2_norm_clip
        return self.noise_stddev / clip if clip else math.inf

    @property
    def divisor(self) -> float:
        """The number that the noised sum is divided by."""
        return 1.0

    def scales_of(self, nest: Nest) -> list[float]:
        """Returns what each leaf of a record is divided by before the clip."""
        return [1.0 for _ in keras.tree.flatten(nest)]

    def parts_of(self, nest: Nest) -> list[str]:
        """Returns the name of the part of a record that each leaf is in."""
        return ["" for _ in keras.tree.flatten(nest)]

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
            stddev=tf.constant(self.noise_stddev, tf.float64),
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
        if not self.noise_stddev:
            return empty_sum(template)
        empty = empty_steps(template)
        if self.is_proven:
            check_provable(empty)
        return empty

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        scales = self.scales_of(records)
        if self.is_proven:
            return proven_sum(like, records, params, mask, self.gamma, scales)
        clip, spacing = params
        norms = records_lib.norms(keras.tree.flatten(records), scales)
        sums = records_lib.clipped_sum(records, norms, clip, mask, self.gamma)
        return on_grid(like, divided(sums, scales), spacing)

    @override
    def planned_event(self, global_state: GaussianGlobalState) -> GaussianEvent:
        return GaussianEvent(global_state.l2_norm_clip, global_state.stddev)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        noised, following = grid.noised(
            keras.tree.flatten(sample_state),
            global_state.stddev,
            global_state.seed,
            unit=global_state.l2_norm_clip if self.rescale else 1.0,
            divisors=self._divisors(sample_state),
        )
        return QueryResult(
            value=keras.tree.pack_sequence_as(sample_state, noised),
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
        divisors = self._divisors(value)
        scales = {divisor: scale / divisor for divisor in set(divisors)}
        return [
            LeafNoise(ledger.GaussianNoise(1.0), scales[divisor], part)
            for divisor, part in zip(
                divisors, self.parts_of(value), strict=True
            )
        ]

    def _divisors(self, nest: Nest) -> list[float]:
        return [self.divisor / scale for scale in self.scales_of(nest)]


def checked_numbers(
    l2_norm_clip: float,
    noise_multiplier: float | None,
    *,
    precision: str,
    denominator: float | None = None,
    **stddev: float | None,
) -> dict[str, Any]:
    """Returns the fields of a Gaussian sum by name, if they go together.

    Either `noise_multiplier` or the stddev is given, the latter under the name
    of its argument. The `denominator` is about the number of records in a sum,
    or `None` if nobody knows. Noise so small that the grid would cut the sum
    off is refused.
    """
    _check.finite_non_negative(l2_norm_clip=l2_norm_clip)
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
    _check.within(
        _SMALLEST_STDDEV, _LARGEST_STDDEV, or_zero=True, **{name: given}
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
    return {
        "l2_norm_clip": float(l2_norm_clip),
        name: float(given),
        "precision": checked_precision(precision, given),
    }


def checked_gamma(gamma: float | None, l2_norm_clip: float) -> float | None:
    """Returns `gamma`, which must keep answers in the range of float32."""
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
    """Returns `rescale`, if answers can be divided by the clip."""
    _check.boolean(rescale=rescale)
    if rescale and not 1 / _LARGEST_UNIT <= l2_norm_clip <= _LARGEST_UNIT:
        raise ValueError(
            f"`l2_norm_clip` must be in [{1 / _LARGEST_UNIT}, "
            f"{_LARGEST_UNIT}] with rescale=True, which divides answers by it. "
            f"Received: l2_norm_clip={l2_norm_clip!r}."
        )
    return rescale
