"""Shows examples in docstrings as programs, and guarantees in a box."""

import re
from typing import Any

import griffe

# From a prompt, or from the word, to the next empty line or to the end.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
GUARANTEE = re.compile(r"^Guarantee: (.*(?:\n(?! *$).*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Puts a fence around examples, and a box around guarantees."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = GUARANTEE.sub(_box, text)


def _box(found: re.Match[str]) -> str:
    indented = found[1].replace("\n", "\n    ")
    return f'!!! guarantee "Guarantee"\n\n    {indented}'
