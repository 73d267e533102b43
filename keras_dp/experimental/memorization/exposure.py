"""Measures how much a model prefers a sequence that it was trained on."""

import numpy as np
import numpy.typing as npt

from keras_dp.accountants.arrays import Array


def exposure(canaries: npt.ArrayLike, alternatives: npt.ArrayLike) -> Array:
    """Returns the exposure of sequences in bits, from their perplexities.

    Canaries are sequences that are drawn at random from a space, and then
    trained on. Alternatives are drawn from the same space, and left out. If a
    canary has the `r`-th lowest perplexity among itself and `n` alternatives,
    its exposure is `log2((n + 1) / r)`.

    Guarantee: if the model does not depend on which sequence was drawn, an
    exposure of at least `b` bits has a probability of at most `2^-b`, for each
    canary. An alternative of equal perplexity counts as lower.

    Args:
        canaries: The log-perplexity of each canary, in any shape.
        alternatives: The log-perplexity of each alternative, shape `[n]`.

    Returns:
        Numbers in [0, log2(n + 1)], in the shape of `canaries`. With `n`
        alternatives no exposure is larger.

    Raises:
        ValueError: A perplexity is `nan`, or `alternatives` has another shape.

    Source: Carlini, Liu, Erlingsson, Kos, Song (2019), arXiv:1802.08232v3,
    Definition 4 and Section 4.3, by sampling. We count the canary itself,
    which makes the rank exact, and fit no distribution.

    >>> exposure([0.5, 9.5], np.arange(1.0, 16.0)).round(3).tolist()
    [4.0, 0.678]
    """
    found = np.asarray(canaries, np.float64)
    others = np.asarray(alternatives, np.float64)
    if others.ndim != 1 or np.isnan(others).any() or np.isnan(found).any():
        raise ValueError(
            "`alternatives` must be an array of one axis, and neither it nor "
            f"`canaries` may have `nan`. Received: shape={others.shape!r}, "
            f"{np.isnan(others).sum() + np.isnan(found).sum()} values `nan`. "
            "Leave such sequences out."
        )
    ranks = 1 + np.searchsorted(np.sort(others), found, side="right")
    return np.asarray(np.log2((others.size + 1) / ranks))
