"""A privacy loss that has finitely many values."""

import dataclasses
import math

import numpy as np

from keras_dp._override import override
from keras_dp.accountants.loss.decay import NO_DECAY, Decay
from keras_dp.accountants.loss.loss_distribution import (
    LossDistribution,
    Nodes,
    Path,
)


@dataclasses.dataclass(frozen=True, slots=True)
class FiniteLoss(LossDistribution):
    """Losses with masses: its integrals are sums, and exact.

    Attributes:
        losses: In nats, rising.
        masses: The mass of each loss under `Q`, > 0, sum 1. Times `e^loss` each
            they are those under `P`, and their sum is 1 too.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]

    @property
    @override
    def largest(self) -> float:
        return self.losses[-1]

    @override
    def nodes(self, tilt: float) -> Nodes:
        return Nodes(np.array(self.losses), np.log(self.masses), -math.inf)

    @override
    def path(self, tilt: float, frequency: float) -> Path:
        found = self.nodes(tilt)
        return Path(
            found.losses.astype(np.complex128),
            found.log_weights.astype(np.complex128),
            found.log_error,
        )

    @override
    def decay(self, tilt: float) -> Decay:
        # The size of a sum of waves comes back.
        return NO_DECAY
