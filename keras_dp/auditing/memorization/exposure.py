"""How much a model prefers a sequence that it was trained on."""

import numpy as np
import numpy.typing as npt

from keras_dp.accountants.arrays import Array


def exposure(canaries: npt.ArrayLike, alternatives: npt.ArrayLike) -> Array:
    """Returns the exposure of sequences, by their rank among others, in bits.

    A sequence that was trained on is drawn at random from a space, and others
    from the same space are left out. With the `r`-th lowest perplexity of `n`
    alternatives and itself, its exposure is `log2((n + 1) / r)`.

    Guarantee: if the model does not depend on which sequence was drawn, an
    exposure of `b` bits or more has the probability `2^-b` at most, for each
    sequence. Equal perplexities count against the exposure.

    Args:
        canaries: The log-perplexity of each sequence that was trained on, of
            any shape.
        alternatives: The log-perplexities of others, shape `[n]`.

    Returns:
        In [0, log2(n + 1)], of the shape of `canaries`. A larger exposure
        cannot be seen with `n` alternatives.

    Source: Carlini, Liu, Erlingsson, Kos, Song (2019), arXiv:1802.08232v3,
    Definition 4 and Section 4.3, by sampling. We differ in counting the
    canary, which makes the rank exact, and fit no distribution beyond it.

    >>> exposure([0.5, 9.5], np.arange(1.0, 16.0)).round(3).tolist()
    [4.0, 0.678]
    """
    found = np.asarray(canaries, np.float64)
    others = np.asarray(alternatives, np.float64)
    if others.ndim != 1 or np.isnan(others).any() or np.isnan(found).any():
        raise ValueError(
            "`alternatives` must be one number for each sequence, and no "
            f"perplexity `nan`. Received: shape={others.shape!r}."
        )
    ranks = 1 + np.searchsorted(np.sort(others), found, side="right")
    return np.asarray(np.log2((others.size + 1) / ranks))
