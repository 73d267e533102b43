"""Which devices there are, and whether XLA compiles for them what is traced.

TensorFlow does not tell a function that is traced who compiles it. XLA lacks
some operations, and cannot call Python.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_OUTSIDE_XLA: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "outside_xla", default=False
)


def has_accelerator() -> bool:
    """Returns whether TensorFlow may use a device that is no CPU."""
    devices = tf.config.list_logical_devices()
    return any(device.device_type != "CPU" for device in devices)


@contextlib.contextmanager
def outside_xla(certainly: bool) -> Iterator[None]:
    """Says whether it is certain that XLA does not compile what is inside."""
    token = _OUTSIDE_XLA.set(certainly)
    try:
        yield
    finally:
        _OUTSIDE_XLA.reset(token)


def is_outside_xla() -> bool:
    """Returns whether it is certain here."""
    return _OUTSIDE_XLA.get()
