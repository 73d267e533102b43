"""Writes the BUILD files of Bazel from what the sources import.

    python -m tests.build_files

makes one library of each package of `keras_dp`, wings included.
"""

import sys
from pathlib import Path

from tests import imports

ROOT = imports.ROOT
# Where the name that is imported is not that of the distribution.
DISTRIBUTIONS = {"absl": "absl_py"}
# Apart from `__init__.py`, which names every package, so that the packages
# can depend on them without a cycle.
CORE = "core"
# Apart from the core, which depends on no TensorFlow.
KERAS = "keras_internals"
NEED_KERAS = (KERAS, "_training_extra")
HEAD = """\
load("@rules_python//python:defs.bzl", "py_library")

package(default_visibility = ["//visibility:public"])
"""
TOP = """
exports_files([
    "LICENSE",
    "pyproject.toml",
])

# The whole package, for those who do not want to choose.
{library}
# What the tutorials train on.
filegroup(
    name = "tutorial_data",
    srcs = glob(["data/**"]),
)
"""


def build_files(root: Path = ROOT) -> dict[Path, str]:
    """Returns the text of every BUILD file, by path."""
    package = root / "keras_dp"
    folders = sorted(path.parent for path in package.glob("*/__init__.py"))
    labels = {f"//keras_dp/{folder.name}" for folder in folders}
    surface = package / "__init__.py"
    keras = [package / f"{name}.py" for name in NEED_KERAS]
    core = [p for p in package.glob("*.py") if p not in (surface, *keras)]
    files = {
        folder / "BUILD": HEAD
        + "\n"
        + _library(
            folder.name,
            root,
            folder,
            list(folder.rglob("*.py")),
            dependencies(folder, root),
        )
        for folder in folders
    }
    own = "\n".join(
        _library(name, root, package, sources, _needed(sources, name, root))
        for name, sources in ((CORE, core), (KERAS, keras))
    )
    whole = _library(
        "keras_dp",
        root,
        package,
        [surface],
        {f":{CORE}", f":{KERAS}", *labels},
        data=["__init__.pyi", "py.typed"],
    )
    files[package / "BUILD"] = f"{HEAD}\n{own}\n{whole}"
    top = _library("keras_dp", root, root, [], {"//keras_dp", *labels})
    files[root / "BUILD"] = HEAD + TOP.format(library=top)
    return files


def dependencies(folder: Path, root: Path = ROOT) -> set[str]:
    """Returns the labels that the library of a package depends on."""
    return _needed(list(folder.rglob("*.py")), folder.name, root)


def _needed(sources: list[Path], own: str, root: Path) -> set[str]:
    found = set()
    for source in sources:
        for name in imports.names_of(source):
            top, *parts = name.split(".")
            if top == "keras_dp":
                is_package = (root / "keras_dp" / parts[0]).is_dir()
                part = parts[0] if is_package else CORE
                if parts[0] in NEED_KERAS:
                    part = KERAS
                if part != own:
                    found.add(f"//keras_dp{'/' if is_package else ':'}{part}")
            elif top not in sys.stdlib_module_names:
                found.add(f"@pypi//{DISTRIBUTIONS.get(top, top)}")
    return found


def _library(
    name: str,
    root: Path,
    folder: Path,
    sources: list[Path],
    deps: set[str],
    data: list[str] | None = None,
) -> str:
    """Returns the rule of one library, with its attributes in order."""
    listed = sorted(path.relative_to(folder).as_posix() for path in sources)
    up = "/".join([".."] * len(folder.relative_to(root).parts))
    attributes = [
        f'    name = "{name}",\n',
        *_attribute("srcs", listed),
        *_attribute("data", data or []),
        *_attribute("imports", [up or "."]),
        *_attribute("deps", sorted(deps)),
    ]
    return f"py_library(\n{''.join(attributes)})\n"


def _attribute(name: str, values: list[str]) -> list[str]:
    if not values:
        return []
    if len(values) == 1:
        return [f'    {name} = ["{values[0]}"],\n']
    lines = "".join(f'        "{value}",\n' for value in values)
    return [f"    {name} = [\n{lines}    ],\n"]


def main() -> None:
    """Writes every BUILD file."""
    for path, text in build_files().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
