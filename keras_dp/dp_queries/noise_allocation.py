"""Ways to divide one noise multiplier over the groups of a query.

A group is a part of a record that is clipped by itself. Let `S_g` be the bound,
and `sigma_g` the standard deviation of the noise, of group g. All groups over
one sample cost what one Gaussian sum costs with the noise multiplier
`z = (sum_g (S_g / sigma_g)^2)^(-1/2)`. Each function here chooses the
`sigma_g` in another way, for a given `z`.

Source: McMahan et al. (2018), arXiv:1812.06210v2, section 3, equation 1, and
section 4.
"""

import math
from collections.abc import Mapping

from keras_dp import _check


def proportional_noise(
    l2_norm_clips: Mapping[str, float], noise_multiplier: float
) -> dict[str, float]:
    """Returns noise proportional to each group's bound.

    Each of the G groups has the same share of the cost:
    `sigma_g = z S_g sqrt(G)`.

    Args:
        l2_norm_clips: The bound of each group, > 0, in its own unit.
        noise_multiplier: The noise multiplier `z` of all groups together, > 0.

    Returns:
        The stddev of the noise on the sum of each group.

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
    """Returns noise proportional to each group's bound per coordinate.

    `S_g / sqrt(d_g)` is the largest root mean square of the `d_g` coordinates
    of a record in group g. The ratio of the noise to it is the same in all
    groups: `sigma_g = z (S_g / sqrt(d_g)) sqrt(sum_h d_h)`.

    Args:
        l2_norm_clips: The bound of each group, > 0, in its own unit.
        noise_multiplier: The noise multiplier `z` of all groups together, > 0.
        dimensions: The number of coordinates of each group.

    Returns:
        The stddev of the noise on the sum of each group.

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
        l2_norm_clips: The bound of each group, > 0, all in the same unit.
        noise_multiplier: The noise multiplier `z` of all groups together, > 0.

    Returns:
        The stddev of the noise on the sum of each group.

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
    """Returns the noise with which each group has a chosen share of the cost.

    The cost is `sum_g (S_g / sigma_g)^2`. For weights `w_g`, the share of group
    g is `w_g / sum_h w_h` with `sigma_g = z S_g sqrt(sum_h w_h / w_g)`.

    Args:
        l2_norm_clips: The bound of each group, > 0, in its own unit.
        noise_multiplier: The noise multiplier `z` of all groups together, > 0.
        shares: The weight of each group, > 0. Weights need not add up to 1.

    Returns:
        The stddev of the noise on the sum of each group.

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
