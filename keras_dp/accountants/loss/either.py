"""Losses of finitely many values, and of one of several known rounds."""

import dataclasses
import math

import numpy as np

from keras_dp._override import override
from keras_dp.accountants.loss.loss_distribution import (
    NO_DECAY,
    Decay,
    LossDistribution,
    Nodes,
    Path,
    log_moments,
)
from keras_dp.accountants.loss.of_normal_output import OutputLoss

# More than the rounding of a log moment.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class EitherLoss(LossDistribution):
    """The mixture of some losses: moments are means of their moments.

    Attributes:
        parts: The losses.
        chances: The chance of each, >= 0, sum 1. It knows nothing of the data.
    """

    parts: tuple[OutputLoss, ...]
    chances: tuple[float, ...]

    @property
    @override
    def largest(self) -> float:
        return max(part.largest for part, _ in self._some())

    @override
    def nodes(self, tilt: float) -> Nodes:
        found = [(part.nodes(tilt), log) for part, log in self._some()]
        return Nodes(
            np.concatenate([each.losses for each, _ in found]),
            np.concatenate([each.log_weights + log for each, log in found]),
            # Errors are relative to the moments, of which `M` is the mean.
            max(each.log_error for each, _ in found),
        )

    @override
    def path(self, tilt: float, frequency: float) -> Path:
        found = [(part.path(tilt, frequency), p) for part, p in self._some()]
        return Path(
            np.concatenate([each.losses for each, _ in found]),
            np.concatenate([each.log_weights + log for each, log in found]),
            max(each.log_error for each, _ in found),
        )

    @override
    def decay(self, tilt: float) -> Decay:
        at = np.array([tilt])
        whole = float(log_moments(self, at)[0])
        sizes, turns = [], []
        for part, log in self._some():
            share = log + float(log_moments(part, at)[0]) - whole
            found = part.decay(tilt)
            sizes.append(found.log_sizes + share + _ROUNDING)
            turns.append(found.turns)
        return Decay(np.hstack(sizes), np.hstack(turns))

    def _some(self) -> list[tuple[OutputLoss, float]]:
        """Returns the losses that there are, with the logs of their chances."""
        pairs = zip(self.parts, self.chances, strict=True)
        return [(part, math.log(p)) for part, p in pairs if p > 0]


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
