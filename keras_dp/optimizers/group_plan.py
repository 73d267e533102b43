"""A nested query for groups of variables, with one noise multiplier for all."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import keras

from keras_dp import _check
from keras_dp.dp_queries import (
    GaussianAverageQuery,
    NestedQuery,
)
from keras_dp.optimizers.groups import (
    Patterns,
    VariableGroups,
    group_variables,
)

Strategy: TypeAlias = Literal["proportional", "dimension_adjusted", "equal"]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupPlan:
    """A query for each group of a model's variables, made by `plan_groups`.

    `str(plan)` is a table. Give `query` and `groups` to a private optimizer.

    Attributes:
        query: A `NestedQuery` with one average of clipped gradients for each
            group.
        groups: The paths of the variables in each group.
        parameters: The number of coordinates of each group.
        noise_multiplier: The noise multiplier of all groups together.
    """

    query: NestedQuery
    groups: VariableGroups
    parameters: Mapping[str, int]
    noise_multiplier: float

    @property
    def shares(self) -> dict[str, float]:
        """The share of each group in the cost `sum_g (S_g / sigma_g)^2`.

        `S_g` is the clip of group g, and `sigma_g` the stddev of its noise.
        """
        costs = {
            group: (query.l2_norm_clip / query.sum_stddev) ** 2
            for group, query in self.query.queries.items()
        }
        total = math.fsum(costs.values())
        return {group: cost / total for group, cost in costs.items()}

    def __str__(self) -> str:
        header = ("group", "variables", "parameters", "clip", "stddev", "share")
        rows = [
            (
                group,
                str(len(self.groups[group])),
                f"{self.parameters[group]:,}",
                f"{query.l2_norm_clip:.6g}",
                f"{query.sum_stddev:.6g}",
                f"{self.shares[group]:.1%}",
            )
            for group, query in self.query.queries.items()
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows)]  # noqa: B905
        lines = [
            "  ".join(
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(
                    zip(row, widths, strict=True)
                )
            )
            for row in (header, *rows)
        ]
        lines.append(f"noise multiplier of all: {self.noise_multiplier:.12g}")
        return "\n".join(lines)


def plan_groups(
    model: keras.Model,
    groups: Patterns,
    *,
    noise_multiplier: float,
    l2_norm_clips: float | Mapping[str, float],
    denominator: float,
    strategy: Strategy | Mapping[str, float] = "proportional",
    gamma: float | None = None,
    rescale: bool = False,
) -> GroupPlan:
    """Plans a query that clips each group of variables by itself, with noise.

    Let z be the noise multiplier of all G groups together. The strategy decides
    the standard deviation of the noise on the sum of each group:

    | Strategy | Noise of group g, with bound S_g and d_g coordinates |
    | --- | --- |
    | `"proportional"` | `z S_g sqrt(G)`: equal shares of the cost |
    | `"dimension_adjusted"` | `z S_g sqrt(sum d / d_g)`: by dimension |
    | `"equal"` | `z sqrt(sum S^2)`: the same on all coordinates |
    | weights `w_g` by group | `z S_g sqrt(sum w / w_g)`: given shares |

    Args:
        model: A model that is built.
        groups: A dict from the name of each group to the pattern, or patterns,
            of the paths of its variables; `...` takes all other variables. See
            `group_variables`.
        noise_multiplier: The noise multiplier z of all groups together, > 0.
        l2_norm_clips: The clip of each group, > 0, by name; or one number for
            all groups.
        denominator: The public constant that divides the sums, > 0: the
            expected size of a sample.
        strategy: A row of the table, which says how the noise is divided.
        gamma: The gamma of all groups; see `GaussianSumQuery`.
        rescale: Whether the answer of each group is divided by its own clip;
            see `GaussianSumQuery`.

    Returns:
        The query, the groups, and a table.

    Raises:
        ValueError: `l2_norm_clips` or the weights have other groups than
            `groups`, a number is out of its range, the model is not built, or
            the patterns do not take each variable exactly once.

    >>> model = keras.Sequential([keras.Input((8,)),
    ...     keras.layers.Dense(4, name="body"), keras.layers.Dense(1)])
    >>> plan = plan_groups(model, {"body": "body", "rest": ...},
    ...     noise_multiplier=1.1, l2_norm_clips={"body": 1.0, "rest": 0.5},
    ...     denominator=256)
    >>> print(plan)
    group  variables  parameters  clip    stddev  share
    body           2          36     1   1.55563  50.0%
    rest           2           5   0.5  0.777817  50.0%
    noise multiplier of all: 1.1
    """
    matched = group_variables(model, groups)
    if not isinstance(l2_norm_clips, Mapping):
        l2_norm_clips = dict.fromkeys(matched, l2_norm_clips)
    if set(l2_norm_clips) != set(matched):
        raise ValueError(
            f"`l2_norm_clips` must have the groups {sorted(matched)!r}. "
            f"Received: {sorted(l2_norm_clips)!r}. Give one clip for each "
            "group, or one number for all."
        )
    _check.finite_positive(denominator=denominator)
    sizes = {v.path: math.prod(v.shape) for v in model.trainable_variables}
    parameters = {
        group: sum(sizes[path] for path in paths)
        for group, paths in matched.items()
    }
    stddevs = stddevs_of_groups(
        {group: l2_norm_clips[group] for group in matched},
        noise_multiplier,
        parameters,
        strategy,
    )
    query = NestedQuery(
        {
            group: GaussianAverageQuery(
                l2_norm_clips[group],
                stddevs[group],
                denominator,
                gamma=gamma,
                rescale=rescale,
            )
            for group in matched
        }
    )
    return GroupPlan(query, matched, parameters, float(noise_multiplier))


def stddevs_of_groups(
    clips: Mapping[str, float],
    noise_multiplier: float,
    dimensions: Mapping[str, int],
    strategy: Strategy | Mapping[str, float],
) -> dict[str, float]:
    """Returns the stddev of the noise on the sum of each group.

    All groups over one sample cost what one Gaussian sum costs with the noise
    multiplier `z = (sum_g (S_g / sigma_g)^2)^(-1/2)`. With
    `sigma_g = z S_g sqrt(sum_h w_h / w_g)`, group g has the share
    `w_g / sum_h w_h` of this cost. The strategy chooses the weights `w_g`.

    Args:
        clips: The bound `S_g` of each group.
        noise_multiplier: The noise multiplier `z` of all groups together.
        dimensions: The number of coordinates of each group.
        strategy: As in `plan_groups`.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, section 3, equation 1,
    and section 4.
    """
    _check.finite_positive(noise_multiplier=noise_multiplier)
    for clip in clips.values():
        _check.finite_positive(l2_norm_clips=clip)
    weights: Mapping[str, float]
    if isinstance(strategy, Mapping):
        weights = strategy
        if set(weights) != set(clips):
            raise ValueError(
                f"`strategy` must have the groups {sorted(clips)!r}. "
                f"Received: {sorted(weights)!r}."
            )
        for weight in weights.values():
            _check.finite_positive(strategy=weight)
    elif strategy == "proportional":
        weights = dict.fromkeys(clips, 1.0)
    elif strategy == "dimension_adjusted":
        weights = dimensions
    elif strategy == "equal":
        weights = {group: clip**2 for group, clip in clips.items()}
    else:
        raise ValueError(
            f"`strategy` must be one of {get_args(Strategy)}, or the share of "
            f"each group. Received: strategy={strategy!r}."
        )
    total = math.fsum(weights.values())
    return {
        group: noise_multiplier * clip * math.sqrt(total / weights[group])
        for group, clip in clips.items()
    }
