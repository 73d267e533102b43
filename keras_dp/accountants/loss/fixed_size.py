"""The loss that dominates a sample of fixed size, in which a record changes.

Subsampling bounds the divergence of such a round for `e >= 0` by that of a
sampled pair `P`, `Q`. As either data set can come first, the divergence for
`-e` follows from that for `e`: the dominating law is the law of the loss of
`P`, `Q` where it is positive, its mirror image where it is negative, and an
atom at 0. This is not the law of `P`, `Q`, whose losses are negative more
often than that, and whose composition is not a bound.

Source: Balle, Barthe, Gaboardi (2018), arXiv:1807.01647v2, Theorems 9 and 10;
that a profile composes as the pair it belongs to: Zhu, Dong, Wang (2022),
arXiv:2106.08567v4, Theorem 10.
"""

import dataclasses
import math

import numpy as np
from scipy import special
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import Layers, LossLaw, Nodes
from keras_dp.accountants.loss.mixture import MixtureLaw
from keras_dp.accountants.loss.of_normal_output import (
    REACH,
    panel_nodes,
    staircase,
)


@dataclasses.dataclass(frozen=True, slots=True)
class SymmetricLaw(LossLaw):
    """The symmetric law of the positive losses of a mixture of laws.

    Attributes:
        laws: Of a record that is there or not, `P` being the mixture.
        weights: Of each, sum 1: which one it is, is known.
    """

    laws: tuple[MixtureLaw, ...]
    weights: tuple[float, ...]

    @property
    @override
    def support(self) -> tuple[float, float]:
        return -math.inf, math.inf

    @override
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        losses, log_weights, errors = [], [], []
        for law, weight in zip(self.laws, self.weights, strict=True):
            found = panel_nodes(
                law, *_positive_range(law, tilt), tilt, frequency
            )
            losses.append(found.losses)
            log_weights.append(found.log_weights + math.log(weight))
            errors.append(found.log_error + math.log(weight))
        positive = np.concatenate(losses)
        log_weight = np.concatenate(log_weights)
        # At -l, Q has what P has at l; the rest is the atom.
        mirrored = log_weight + positive
        atom = 1 - np.exp(log_weight).sum() - np.exp(mirrored).sum()
        return Nodes(
            np.concatenate([positive, [0.0], -positive]),
            np.concatenate([log_weight, [np.log(atom)], mirrored]),
            float(special.logsumexp(errors)) + math.log(2),
        )

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        mirrored = np.unique(np.concatenate([edges, -edges, [0.0]]))
        positive = mirrored[mirrored >= 0]
        parts = [law.log_masses(positive) for law in self.laws]
        logs = np.log(self.weights)[:, None]
        p = special.logsumexp(np.stack([a for a, _ in parts]) + logs, axis=0)
        q = special.logsumexp(np.stack([b for _, b in parts]) + logs, axis=0)
        # The atom, where P and Q are equal, belongs to the cell below 0.
        above = special.logsumexp(np.concatenate([p[1:], q[1:]]))
        atom = math.log(max(-math.expm1(min(float(above), 0.0)), 0.0) or 5e-324)
        below_p, below_q = q[:0:-1], p[:0:-1]
        all_p = np.concatenate([below_p, p[1:]])
        all_q = np.concatenate([below_q, q[1:]])
        middle = below_p.size - 1
        all_p[middle] = np.logaddexp(all_p[middle], atom)
        all_q[middle] = np.logaddexp(all_q[middle], atom)
        # Cells between the edges that were asked for.
        first = np.searchsorted(mirrored, edges)
        starts = np.concatenate([[0], first + 1])
        return (
            np.logaddexp.reduceat(all_p, starts),
            np.logaddexp.reduceat(all_q, starts),
        )

    @override
    def layers(self, tilt: float) -> Layers:
        # Only what the likeliest of the laws has above 0, and its share.
        likeliest = int(np.argmax(self.weights))
        law, weight = self.laws[likeliest], self.weights[likeliest]
        low, high = _positive_range(law, tilt)
        found = staircase(law, tilt, low, high)
        all_nodes = self.nodes(tilt, tilt, 0.0)
        part = panel_nodes(law, low, high, tilt, 0.0)
        share = weight * math.exp(
            _log_sum(part, tilt) - _log_sum(all_nodes, tilt)
        )
        return found._replace(
            probabilities=found.probabilities * share * (1 - 1e-9)
        )


def _positive_range(law: MixtureLaw, tilt: float) -> tuple[float, float]:
    """Returns the outputs with a positive loss, as far as they matter."""
    low = float(law.outputs(np.zeros(1))[0])
    return low, max(law.range(tilt)[1], low + REACH)


def _log_sum(nodes: Nodes, tilt: float) -> float:
    """Returns the log of the part of `M(tilt)` that is at some nodes."""
    logs = (1 + tilt) * nodes.losses + nodes.log_weights
    return float(special.logsumexp(logs))
