"""The BUILD files say what the code says."""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    path.parent for path in (ROOT / "keras_dp").rglob("__init__.py")
)
# Where the name that is imported is not that of the distribution.
DISTRIBUTIONS = {"absl": "absl_py"}


class Target(NamedTuple):
    """One rule of a BUILD file."""

    kind: str
    label: str  # `//folder:name`.
    folder: Path
    attributes: dict


def absolute(label, package):
    """Returns a label in its long form: `//a/b` is `//a/b:b`."""
    if label.startswith("@"):
        return label
    if label.startswith(":"):
        return f"//{package}{label}"
    return label if ":" in label else f"{label}:{label.split('/')[-1]}"


def targets(folder, root=ROOT):
    """Returns the rules of a BUILD file that have a name."""
    found = []
    package = "" if folder == root else folder.relative_to(root).as_posix()
    for node in ast.parse((folder / "BUILD").read_text("utf-8")).body:
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call):
            continue
        attributes = {
            each.arg: ast.literal_eval(each.value)
            for each in call.keywords
            if not isinstance(each.value, ast.Call)  # glob(...).
        }
        if "name" in attributes:
            label = absolute(f":{attributes['name']}", package)
            found.append(Target(call.func.id, label, folder, attributes))
    return found


def libraries(root=ROOT):
    """Returns the libraries below `keras_dp`."""
    return [
        target
        for build in sorted((root / "keras_dp").rglob("BUILD"))
        for target in targets(build.parent, root)
        if target.kind == "py_library"
    ]


def imported(source):
    """Yields the full names of the modules that a source may import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def owners(all_libraries):
    """Returns the label of the library that holds each file."""
    return {
        target.folder / source: target.label
        for target in all_libraries
        for source in target.attributes["srcs"]
    }


def needed(target, owner, root=ROOT):
    """Returns the labels that the sources of a library import."""
    labels = set()
    for source in target.attributes["srcs"]:
        for name in imported((target.folder / source).read_text("utf-8")):
            top, *parts = name.split(".")
            if top == "keras_dp":
                labels.add(owner[_file(root / top, parts)])
            elif top not in sys.stdlib_module_names:
                labels.add(f"@pypi//{DISTRIBUTIONS.get(top, top)}")
    return labels - {target.label}


def _file(folder, parts):
    """Returns the file of the longest prefix of `parts` that is a module."""
    for end in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:end])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                # A package's own `__init__.py` stands for all of it.
                return file
    return folder / "__init__.py"


def declared(target, root=ROOT):
    package = target.folder.relative_to(root).as_posix()
    return {
        absolute(label, package) for label in target.attributes.get("deps", ())
    }


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: path.name)
def test_every_package_has_a_library_of_its_name(folder) -> None:
    labels = [target.label for target in targets(folder)]

    package = folder.relative_to(ROOT).as_posix()
    assert f"//{package}:{folder.name}" in labels


@pytest.mark.parametrize(
    "folder", [ROOT, *PACKAGES], ids=lambda path: path.name
)
def test_every_build_file_loads_what_it_uses_and_is_public(folder) -> None:
    statements = [
        ast.unparse(node)
        for node in ast.parse((folder / "BUILD").read_text("utf-8")).body
    ]

    assert statements[:2] == [
        "load('@rules_python//python:defs.bzl', 'py_library')",
        "package(default_visibility=['//visibility:public'])",
    ]


def test_every_source_is_in_exactly_one_library() -> None:
    listed = sorted(
        target.folder / source
        for target in libraries()
        for source in target.attributes["srcs"]
    )

    assert listed == sorted((ROOT / "keras_dp").rglob("*.py"))


def test_every_data_file_exists() -> None:
    for target in libraries():
        for name in target.attributes.get("data", ()):
            assert (target.folder / name).is_file()


def test_every_library_puts_the_repository_on_the_path() -> None:
    for target in libraries():
        (path,) = target.attributes["imports"]
        assert (target.folder / path).resolve() == ROOT


@pytest.mark.parametrize("target", libraries(), ids=lambda target: target.label)
def test_the_declared_dependencies_are_those_of_the_code(target) -> None:
    assert declared(target) == needed(target, owners(libraries()))


def test_no_dependency_is_listed_twice() -> None:
    for target in libraries():
        listed = target.attributes.get("deps", [])
        assert len(set(listed)) == len(listed)


def test_the_dependencies_have_no_cycle() -> None:
    left = {target.label: declared(target) for target in libraries()}
    while left:
        free = [label for label in left if not left[label] & left.keys()]
        assert free, f"cycle among {sorted(left)}"
        for label in free:
            del left[label]


def test_the_library_on_top_has_every_package() -> None:
    (top,) = (t for t in targets(ROOT) if t.kind == "py_library")

    assert top.label == "//:keras_dp"
    # `core` comes with `//keras_dp`.
    assert {absolute(label, "") for label in top.attributes["deps"]} == {
        target.label for target in libraries()
    } - {"//keras_dp:core"}


class TestTheCheck:
    """Controls: the comparison above notices both kinds of mistake."""

    @pytest.fixture
    def tree(self, tmp_path):
        for name, source in {
            "ledger": "import json\n",
            "accountants": "import numpy\nfrom keras_dp import ledger\n",
        }.items():
            folder = tmp_path / "keras_dp" / name
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text(source)
            (folder / "BUILD").write_text(
                f'py_library(name = "{name}", srcs = ["__init__.py"],'
                " deps = DEPS)\n"
            )
        return tmp_path

    @pytest.mark.parametrize(
        ("deps", "right"),
        [
            (["//keras_dp/ledger", "@pypi//numpy"], True),
            (["//keras_dp/ledger:ledger", "@pypi//numpy"], True),
            (["//keras_dp/ledger"], False),
            (["@pypi//numpy"], False),
            (["//keras_dp/ledger", "@pypi//numpy", "@pypi//scipy"], False),
        ],
    )
    def test_tells_right_from_wrong(self, tree, deps, right) -> None:
        for build in tree.rglob("BUILD"):
            own = deps if build.parent.name == "accountants" else []
            build.write_text(build.read_text().replace("DEPS", repr(own)))
        found = {target.label: target for target in libraries(tree)}
        target = found["//keras_dp/accountants:accountants"]

        needs = needed(target, owners(found.values()), tree)

        assert (declared(target, tree) == needs) is right
