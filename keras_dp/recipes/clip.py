"""The clip of a training, where nobody chose one."""

import contextlib
import math
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
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.mean_squared_error,
    keras.losses.mean_absolute_error,
    keras.losses.mean_squared_logarithmic_error,
    keras.losses.huber,
    keras.losses.log_cosh,
)
# Losses that are a mean over all outputs of a record, each with a gradient of
# at most 1 by its logit: by all n logits together it is at most 1 / sqrt(n).
_MEANS_OF_CLASSES = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
)


def clip_of(
    l2_norm_clip: Any, loss: Any, model: keras.Model | None = None
) -> tuple[float, float | None]:
    """Returns the clip and the gamma of `GaussianSumQuery`.

    Args:
        l2_norm_clip: As in `make_private`.
        loss: As in `compile`.
        model: The model, whose outputs are counted if it has one and is built.

    Raises:
        ValueError: `l2_norm_clip` is none of those.

    >>> clip_of(None, "mse"), clip_of("automatic", "mse")
    ((0.03125, None), (1.0, 0.01))
    """
    if l2_norm_clip is None:
        if is_one_of(loss, _ERRORS):
            return _CLIP_OF_ERRORS, None
        if is_one_of(loss, _MEANS_OF_CLASSES):
            nearest = round(-math.log2(_outputs(model)) / 2)
            return max(_CLIP_OF_ERRORS, _CLIP * 2.0**nearest), None
        return _CLIP, None
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
        loss: As in `compile`. Of several losses, all must be.
        kinds: Classes of losses, and functions.
    """
    if isinstance(loss, (list, tuple, dict)):
        each = keras.tree.flatten(loss)
        return bool(each) and all(is_one_of(one, kinds) for one in each)
    with contextlib.suppress(ValueError, TypeError):
        loss = keras.losses.get(loss)
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    return isinstance(loss, classes) or loss in kinds


def _outputs(model: keras.Model | None) -> int:
    """Returns how many numbers the one output of a record has, 1 if unknown."""
    outputs = getattr(model, "outputs", None) or []
    sizes = outputs[0].shape[1:] if len(outputs) == 1 else ()
    return 1 if None in sizes else max(1, math.prod(sizes))
