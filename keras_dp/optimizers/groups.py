"""Groups of a model's trainable variables, and a query for each group."""

import fnmatch
import math
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any, NamedTuple

import keras

from keras_dp import _check
from keras_dp.dp_queries import GaussianAverageQuery, NestedQuery

Patterns = Mapping[str, str | tuple[str, ...] | EllipsisType]


class VariableGroups(Mapping[str, tuple[str, ...]]):
    """The groups of a model's trainable variables.

    It maps the name of each group to the paths of its variables, in the order
    of the model. Every trainable variable is in exactly one group.
    `group_variables` makes it.

    Attributes:
        patterns: The patterns of the groups. Two instances of a model can have
            different paths, but fit the same patterns.
    """

    def __init__(
        self, paths: Mapping[str, tuple[str, ...]], patterns: Patterns
    ) -> None:
        self._paths = {name: tuple(each) for name, each in paths.items()}
        self.patterns: Patterns = dict(patterns)

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"VariableGroups({self._paths!r})"

    def split(self, variables: list[Any], parts: list[Any]) -> dict[str, Any]:
        """Returns one list of parts for each group.

        Args:
            variables: The variables of the model.
            parts: One value for each variable.

        Raises:
            ValueError: The variables are not exactly those of the groups.
        """
        by_path = {v.path: p for v, p in zip(variables, parts, strict=True)}
        known = [path for paths in self._paths.values() for path in paths]
        if set(known) != set(by_path) or len(by_path) < len(variables):
            raise ValueError(
                "`groups` must hold each trainable variable once. Received: "
                f"groups={self!r} for the variables "
                f"{[variable.path for variable in variables]!r}. Make the "
                "groups with group_variables from the model that is trained."
            )
        return {
            name: [by_path[path] for path in paths]
            for name, paths in self._paths.items()
        }

    def join(self, variables: list[Any], nest: Mapping[str, Any]) -> list[Any]:
        """Returns one part per variable, as the inverse of `split`.

        Args:
            variables: The variables of the model.
            nest: One list of parts for each group.
        """
        by_path = {
            path: part
            for name, paths in self._paths.items()
            for path, part in zip(paths, nest[name], strict=True)
        }
        return [by_path[variable.path] for variable in variables]


def group_variables(model: keras.Model, patterns: Patterns) -> VariableGroups:
    """Puts the trainable variables of a model into named groups.

    The path of a variable has parts, as in `"head/bias"`. A pattern is compared
    with whole parts; `*` and `?` stand for any characters, as in file names.
    `"head"` takes all variables of a layer named `head`, `"embed*"` those of
    layers whose name begins with `embed`, and `"bias"` all biases. A group may
    have a tuple of patterns. The pattern `...` takes every variable that no
    other group takes.

    Args:
        model: A model that is built.
        patterns: A dict from the name of each group to its pattern.

    Returns:
        The groups, with the paths of their variables.

    Raises:
        ValueError: The model is not built, or two variables have one path. Or a
            group takes no variable, a variable is taken by two groups or by
            none, or there are two patterns `...`.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> groups = group_variables(model, {"bias": "bias", "rest": ...})
    >>> {name: len(paths) for name, paths in groups.items()}
    {'bias': 1, 'rest': 1}
    """
    paths = _paths_of(model)
    groups: dict[str, list[str]] = {name: [] for name in patterns}
    rest = [name for name, pattern in patterns.items() if pattern is ...]
    if len(rest) > 1:
        raise ValueError(
            "`patterns` must have at most one `...`. "
            f"Received: patterns={dict(patterns)!r}. Give the other groups "
            "patterns of paths."
        )
    for path in paths:
        takers = [
            name
            for name, pattern in patterns.items()
            if pattern is not ... and _matches(path, pattern)
        ] or rest
        if len(takers) != 1:
            raise ValueError(
                "`patterns` must take each variable exactly once. Received: "
                f"{path!r}, taken by {takers or 'no group'!r}. Patterns: "
                f"{dict(patterns)!r}. Correct them, or add a group with the "
                "pattern `...`, which takes all others."
            )
        groups[takers[0]].append(path)
    empty = [name for name, taken in groups.items() if not taken]
    if empty:
        raise ValueError(
            "Each group must take at least one variable. Received: "
            f"{empty!r}, which take none of {paths!r}. Correct or leave out "
            "these groups of `patterns`."
        )
    return VariableGroups(
        {name: tuple(taken) for name, taken in groups.items()}, patterns
    )


class GroupPlan(NamedTuple):
    """A query for each group of a model's variables, made by `plan_groups`.

    Attributes:
        query: A `NestedQuery` with one average of clipped gradients for each
            group.
        groups: The paths of the variables in each group.
    """

    query: NestedQuery
    groups: VariableGroups


def plan_groups(
    model: keras.Model,
    groups: Patterns,
    *,
    noise_multiplier: float,
    l2_norm_clips: float | Mapping[str, float],
    denominator: float,
    gamma: float | None = None,
    rescale: bool = False,
) -> GroupPlan:
    """Plans a query that clips each group of variables by itself, with noise.

    All G groups over one sample cost what one Gaussian sum costs with the noise
    multiplier `z = (sum_g (S_g / sigma_g)^2)^(-1/2)`. Group g, with the bound
    `S_g`, gets noise of the standard deviation `sigma_g = z S_g sqrt(G)`, and
    so an equal share of this cost.

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
        gamma: The gamma of all groups; see `GaussianSumQuery`.
        rescale: Whether the answer of each group is divided by its own clip;
            see `GaussianSumQuery`.

    Returns:
        The query and the groups, for a private optimizer.

    Raises:
        ValueError: `l2_norm_clips` have other groups than `groups`, a number is
            out of its range, the model is not built, or the patterns do not
            take each variable exactly once.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, section 3, equation 1,
    and section 4.

    >>> model = keras.Sequential([keras.Input((8,)),
    ...     keras.layers.Dense(4, name="body"), keras.layers.Dense(1)])
    >>> plan = plan_groups(model, {"body": "body", "rest": ...},
    ...     noise_multiplier=1.1, l2_norm_clips={"body": 1.0, "rest": 0.5},
    ...     denominator=256)
    >>> {g: round(q.sum_stddev, 4) for g, q in plan.query.queries.items()}
    {'body': 1.5556, 'rest': 0.7778}
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
    _check.finite_positive(noise_multiplier=noise_multiplier)
    for clip in l2_norm_clips.values():
        _check.finite_positive(l2_norm_clips=clip)
    queries = {
        group: GaussianAverageQuery(
            l2_norm_clips[group],
            noise_multiplier * l2_norm_clips[group] * math.sqrt(len(matched)),
            denominator,
            gamma=gamma,
            rescale=rescale,
        )
        for group in matched
    }
    return GroupPlan(NestedQuery(queries), matched)


def _paths_of(model: keras.Model) -> list[str]:
    """Returns the paths of the trainable variables, all of them different."""
    if not model.built:
        raise ValueError(
            "`model` must be built before its variables can be grouped. Call "
            f"it on a batch of data first. Received: model={model.name!r}."
        )
    paths = [variable.path for variable in model.trainable_variables]
    if len(set(paths)) < len(paths):
        raise ValueError(
            "The trainable variables of `model` must have different paths. "
            f"Received: paths={paths!r}. Give the layers different names."
        )
    return paths


def patterns_from(config: Mapping[str, Any] | None) -> Patterns | None:
    """Returns the patterns that were saved, where `None` stands for `...`."""
    if config is None:
        return None
    return {name: _pattern_from(taken) for name, taken in config.items()}


def _pattern_from(taken: Any) -> str | tuple[str, ...] | EllipsisType:
    if taken is None:
        return ...
    return taken if isinstance(taken, str) else tuple(taken)


def _matches(path: str, patterns: Any) -> bool:
    parts = path.split("/")
    each = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    return any(
        _starts_with(parts[start:], pattern.split("/"))
        for start in range(len(parts))
        for pattern in each
    )


def _starts_with(parts: list[str], wanted: list[str]) -> bool:
    """Whether the first parts match, one by one. Only `*` and `?` are wild."""
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatchcase(part, pattern.replace("[", "[[]"))
        for part, pattern in zip(parts, wanted, strict=False)
    )
