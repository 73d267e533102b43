"""Base of the Gaussian sums whose clip changes from round to round."""

from typing import Any

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check
from keras_dp.dp_queries.dp_query import LeafNoise, Nest
from keras_dp.dp_queries.gaussian_sum_query import GaussianSumQuery
from keras_dp.dp_queries.summing_query import SummingQuery

# Clips, and the noise made of them, stay far inside the range of float32.
SMALLEST_CLIP, LARGEST_CLIP = 1e-20, 1e20
_SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-10, 1e10


class AdaptiveSumQuery(SummingQuery):
    """A Gaussian sum; its clip and its noise are in its state's `sum_state`."""

    __slots__ = ()

    initial_l2_norm_clip: float
    noise_multiplier: float

    @property
    def sum_query(self) -> GaussianSumQuery:
        """The sum of the first round."""
        clip = self.initial_l2_norm_clip
        return GaussianSumQuery(clip, self.noise_multiplier * clip)

    @property
    @override
    def adapts(self) -> bool:
        return True

    @override
    def result_noise(self, global_state: Any, value: Nest) -> list[LeafNoise]:
        return self.sum_query.result_noise(global_state.sum_state, value)

    @override
    def derive_metrics(self, global_state: Any) -> dict[str, tf.Tensor]:
        return {"clip": global_state.sum_state.l2_norm_clip}


def check_clip(**named: float) -> None:
    """Raises unless every value is a possible clip."""
    for name, value in named.items():
        _check.finite_positive(**{name: value})
        if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
            raise ValueError(
                f"`{name}` must be in [{SMALLEST_CLIP}, {LARGEST_CLIP}]. "
                f"Received: {name}={value!r}."
            )


def check_multiplier(**named: float) -> None:
    """Raises unless noise of these multiples of a clip fits float32."""
    for name, value in named.items():
        _check.finite_non_negative(**{name: value})
        if value and not _SMALLEST_MULTIPLIER <= value <= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"`{name}` must be 0, or in [{_SMALLEST_MULTIPLIER}, "
                f"{_LARGEST_MULTIPLIER}]. Received: {name}={value!r}."
            )
