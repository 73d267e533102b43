"""The clip of a training, where nobody chose one."""

import contextlib
from typing import Any

import keras

from keras_dp import _check

# Gradients of classifiers are mostly as long as the first,
# those of means of errors far shorter (docs/choosing.md).
_CLIP, _CLIP_OF_ERRORS = 1.0, 2.0**-5
# The paper on automatic clipping takes this gamma (Bu et al. 2022).
_GAMMA = 0.01
_ERRORS = (
    keras.losses.MeanSquaredError,
    keras.losses.MeanAbsoluteError,
    keras.losses.Huber,
    keras.losses.mean_squared_error,
    keras.losses.mean_absolute_error,
    keras.losses.huber,
)


def clip_of(l2_norm_clip: Any, loss: Any) -> tuple[float, float | None]:
    """Returns the clip and the gamma of `GaussianSumQuery`.

    Args:
        l2_norm_clip: As in `make_private`.
        loss: As in `compile`.

    Raises:
        ValueError: `l2_norm_clip` is none of those.

    >>> clip_of(None, "mse"), clip_of("automatic", "mse")
    ((0.03125, None), (1.0, 0.01))
    """
    if l2_norm_clip is None:
        return _CLIP_OF_ERRORS if is_one_of(loss, _ERRORS) else _CLIP, None
    if isinstance(l2_norm_clip, str):
        if l2_norm_clip == "automatic":
            return _CLIP, _GAMMA
        raise ValueError(
            '`l2_norm_clip` must be a number > 0, "automatic" or None. '
            f"Received: l2_norm_clip={_check.shown(l2_norm_clip)}."
        )
    _check.finite_positive(l2_norm_clip=l2_norm_clip)
    return l2_norm_clip, None


def is_one_of(loss: Any, kinds: tuple[Any, ...]) -> bool:
    """Returns whether a loss is of one of the given classes and functions.

    Args:
        loss: As in `compile`. Several losses are none of them.
        kinds: Classes of losses, and functions.
    """
    with contextlib.suppress(ValueError, TypeError):
        loss = keras.losses.get(loss)
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    return isinstance(loss, classes) or loss in kinds
