"""The documents that users read, their code, their links and their headings."""

import re
import shlex
from collections import Counter
from pathlib import Path

from tests.imports import ROOT

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The code of other libraries, on the pages for migrants.
PEER = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What is printed, rounded: `print(...)  # 6.327 and 2.174`.
STATED = re.compile(r"\)  # (\d+\.\d+(?: and \d+\.\d+)*)$", re.MULTILINE)
NUMBER = re.compile(r"\d+\.\d+")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
COMMAND = "keras-dp "
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)


def documents() -> list[Path]:
    """Returns every document, but the pages that are generated."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").glob("*.md")),
        *sorted((ROOT / "tutorials").glob("*.md")),
        ROOT / "benchmarks/peers/README.md",
        ROOT / "notebooks/README.md",
    ]


def programs() -> list[Path]:
    """Returns the documents whose code runs, block after block."""
    docs = ROOT / "docs"
    return [
        ROOT / "README.md",
        docs / "start.md",
        docs / "auditing.md",
        docs / "concepts.md",
        docs / "experimental.md",
        docs / "troubleshooting.md",
        *sorted((docs / "guides").glob("*.md")),
        *sorted((docs / "migrate").glob("*.md")),
    ]


def blocks(path: Path) -> list[str]:
    """Returns the blocks of Python of a document."""
    return PYTHON.findall(path.read_text("utf-8"))


def stated(code: str) -> list[str]:
    """Returns the numbers that comments say the code prints, in order."""
    return [
        number
        for comment in STATED.findall(code)
        for number in NUMBER.findall(comment)
    ]


def unprinted(code: str, output: str) -> list[str]:
    """Returns the numbers that comments state and that were not printed."""
    printed = [float(number) for number in NUMBER.findall(output)]
    return [
        number
        for number in stated(code)
        if number
        not in {f"{p:.{len(number.partition('.')[2])}f}" for p in printed}
    ]


def commands(text: str) -> list[list[str]]:
    """Returns the arguments of each whole call of `keras-dp`."""
    shell = "\n".join(SHELL.findall(text)).replace("\\\n", " ")
    lines = [line for line in shell.splitlines() if line.startswith(COMMAND)]
    lines += [
        " ".join(code.split())
        for code in INLINE.findall(FENCE.sub("", text))
        if re.match(rf"{COMMAND}(plan --|.*\.ledger)", code)
    ]
    # The shell reads where the answer goes.
    calls = [line.partition(" > ")[0] for line in lines]
    return [shlex.split(call, comments=True)[1:] for call in calls]


def links(text: str) -> list[str]:
    """Returns where the links and pictures of a document lead."""
    return [
        link or source for link, source in LINK.findall(FENCE.sub("", text))
    ]


def anchors(text: str) -> set[str]:
    """Returns the anchors of headings that are the same on GitHub and the site.

    They differ where two headings are equal, and where one begins or ends with
    a sign and a space.
    """
    found: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        kept = re.sub(r"[^\w\- ]", "", plain.lower())
        if kept == kept.strip():
            found[kept.replace(" ", "-")] += 1
    return {anchor for anchor, count in found.items() if count == 1}
