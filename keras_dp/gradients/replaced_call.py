"""Exchanges what a layer does when it is called, for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras


@contextlib.contextmanager
def replaced_call(
    layer: keras.Layer, call: Callable[..., Any]
) -> Iterator[None]:
    """Sets `layer.call` on the instance, behind the back of Keras's tracking.

    What was there before, possibly another replacement, is put back.
    """
    before = vars(layer).get("call")
    vars(layer)["call"] = call
    try:
        yield
    finally:
        del vars(layer)["call"]
        if before is not None:
            vars(layer)["call"] = before
