"""How one noise multiplier is shared out over the groups of a query.

With `S_g` the bound and `sigma_g` the noise of group g, groups that are
answered over one sample cost what one Gaussian sum with the noise multiplier
`z = (sum_g (S_g / sigma_g)^2)^(-1/2)` costs. Each function here returns the
`sigma_g` of one way to meet a given `z`.

Source: McMahan et al. (2018), arXiv:1812.06210v2, section 3, equation 1, and
section 4.
"""

import math
from collections.abc import Mapping

from keras_dp import _check


def proportional_noise(
    l2_norm_clips: Mapping[str, float], noise_multiplier: float
) -> dict[str, float]:
    """Returns noise proportional to each group's bound: equal shares of cost.

    `sigma_g = z S_g sqrt(G)` for G groups.

    Args:
        l2_norm_clips: Bound of each group, > 0, in its own unit.
        noise_multiplier: The one of all groups together, > 0.

    >>> proportional_noise({"conv": 1.0, "head": 0.5}, noise_multiplier=2.0)
    {'conv': 2.828..., 'head': 1.414...}
    """
    shares = dict.fromkeys(l2_norm_clips, 1.0)
    return noise_from_shares(l2_norm_clips, noise_multiplier, shares)


def dimension_adjusted_noise(
    l2_norm_clips: Mapping[str, float],
    noise_multiplier: float,
    dimensions: Mapping[str, int],
) -> dict[str, float]:
    """Returns noise proportional to the largest root mean square coordinate.

    `sigma_g = z (S_g / sqrt(d_g)) sqrt(sum_h d_h)`: a coordinate has the same
    ratio of noise to signal in each group.

    Args:
        l2_norm_clips: Bound of each group, > 0, in its own unit.
        noise_multiplier: The one of all groups together, > 0.
        dimensions: Number of coordinates of each group.

    >>> dimension_adjusted_noise({"a": 1.0, "b": 1.0}, 1.0, {"a": 1, "b": 3})
    {'a': 2.0, 'b': 1.154...}
    """
    for dimension in dimensions.values():
        _check.integer_at_least(1, dimensions=dimension)
    return noise_from_shares(l2_norm_clips, noise_multiplier, dimensions)


def equal_noise(
    l2_norm_clips: Mapping[str, float], noise_multiplier: float
) -> dict[str, float]:
    """Returns the same noise for all groups, as if they were one vector.

    `sigma_g = z sqrt(sum_h S_h^2)`.

    Args:
        l2_norm_clips: Bound of each group, > 0, in one unit.
        noise_multiplier: The one of all groups together, > 0.

    >>> equal_noise({"a": 3.0, "b": 4.0}, noise_multiplier=2.0)
    {'a': 10.0, 'b': 10.0}
    """
    _check_bounds(l2_norm_clips, noise_multiplier)
    stddev = noise_multiplier * math.hypot(*l2_norm_clips.values())
    return dict.fromkeys(l2_norm_clips, stddev)


def noise_from_shares(
    l2_norm_clips: Mapping[str, float],
    noise_multiplier: float,
    shares: Mapping[str, float],
) -> dict[str, float]:
    """Returns the noise that gives each group its share of the cost.

    `sigma_g = z S_g sqrt(sum_h w_h / w_g)`: the fraction of group g in
    `sum (S_g / sigma_g)^2` is `w_g / sum_h w_h`.

    Args:
        l2_norm_clips: Bound of each group, > 0, in its own unit.
        noise_multiplier: The one of all groups together, > 0.
        shares: Weight of each group, > 0; they need not add up to 1.

    Raises:
        ValueError: The groups of the arguments differ, or a number is out of
            its range.

    >>> noise_from_shares({"a": 1.0, "b": 1.0}, 1.0, {"a": 4.0, "b": 1.0})
    {'a': 1.118..., 'b': 2.236...}
    """
    _check_bounds(l2_norm_clips, noise_multiplier)
    if set(shares) != set(l2_norm_clips):
        raise ValueError(
            "`shares` must have the groups of `l2_norm_clips`, "
            f"{sorted(l2_norm_clips)!r}. Received: {sorted(shares)!r}."
        )
    for share in shares.values():
        _check.finite_positive(shares=share)
    total = math.fsum(shares.values())
    return {
        group: noise_multiplier * clip * math.sqrt(total / shares[group])
        for group, clip in l2_norm_clips.items()
    }


def _check_bounds(
    l2_norm_clips: Mapping[str, float], noise_multiplier: float
) -> None:
    if not l2_norm_clips:
        raise ValueError(
            "`l2_norm_clips` must have at least one group. "
            f"Received: l2_norm_clips={l2_norm_clips!r}."
        )
    for clip in l2_norm_clips.values():
        _check.finite_positive(l2_norm_clips=clip)
    _check.finite_positive(noise_multiplier=noise_multiplier)
