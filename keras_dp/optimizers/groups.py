"""Groups of a model's trainable variables, by patterns of their paths."""

import fnmatch
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any

import keras

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
