"""Writes the table of lines by package into the page on the design.

python docs/_site/sizes.py
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/design.md"
TABLE = re.compile(r"\| Package \| Files \|.*?\n(?=\n|\Z)", re.DOTALL)


def lines(paths: list[Path]) -> int:
    """Returns the lines of all files together."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def table() -> str:
    """Returns a row for each package, for the root and for the tests."""
    package = ROOT / "keras_dp"
    rows = []
    for folder in sorted(p.parent for p in package.glob("*/__init__.py")):
        files = sorted(folder.rglob("*.py"))
        rows.append((f"`{folder.name}`", len(files), lines(files)))
    own = sorted(package.glob("*.py"))
    rows.append(("the root", len(own), lines(own)))
    rows.sort(key=lambda row: -row[2])
    everything = sorted(package.rglob("*.py"))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    rows.append(("**all**", len(everything), lines(everything)))
    rows.append(("`tests`", len(tests), lines(tests)))
    head = "| Package | Files | Lines |\n| --- | ---: | ---: |\n"
    return head + "".join(f"| {n} | {f} | {c:,} |\n" for n, f, c in rows)


def main() -> None:
    """Replaces the table."""
    text = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), text, count=1), "utf-8")


if __name__ == "__main__":
    main()
