"""The clip of a training, where nobody chose one."""

import contextlib
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check
from keras_dp.recipes.settings import Settings

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

# Losses that are a mean over the positions of a record, such as the words of a
# text, each with a gradient of at most sqrt(2) by its logits.
_MEANS_OF_POSITIONS = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
)


def choose_clip(settings: Settings) -> Settings:
    """Chooses the bound on a gradient by the loss."""
    given = settings.l2_norm_clip
    clip, gamma = clip_of(given, settings.compiled["loss"], settings.model)
    if gamma is not None:
        value, reason = "automatic", f"automatic clipping (gamma {gamma:g})"
    else:
        value, reason = f"{clip:g}", "" if given else "by the loss"
    return settings.with_choice(
        "clip", value, reason, l2_norm_clip=clip, gamma=gamma
    )


def clip_of(
    l2_norm_clip: Any, loss: Any, model: keras.Model | None = None
) -> tuple[float, float | None]:
    """Returns the clip and the gamma of `GaussianSumQuery`.

    The gamma is `None` unless clipping is automatic. With several losses, the
    one with the longest gradients decides. If the model is built, its outputs
    are counted.
    """
    if l2_norm_clip is None:
        found = [
            clip
            for one, outputs in _losses_with_outputs(loss, model)
            if (clip := _clip_of_loss(one, outputs)) is not None
        ]
        return max(found, default=_CLIP), None
    if isinstance(l2_norm_clip, str):
        if l2_norm_clip == "automatic":
            return _CLIP, _GAMMA
        raise ValueError(
            '`l2_norm_clip` must be a number > 0, "automatic" or None. '
            f"Received: l2_norm_clip={_check.shown(l2_norm_clip)}."
        )
    _check.finite_positive(l2_norm_clip=l2_norm_clip)
    return float(l2_norm_clip), None


def positions_of(loss: Any, model: keras.Model) -> int:
    """Returns how many positions of a record have a class, 1 for one label.

    With several losses, the one of most positions counts.
    """
    counts = [
        math.prod(outputs[:-1])
        for one, outputs in _losses_with_outputs(loss, model)
        if outputs and is_one_of(one, _MEANS_OF_POSITIONS)
    ]
    return max(counts, default=1)


def is_one_of(loss: Any, kinds: tuple[Any, ...]) -> bool:
    """Returns whether a loss, or each of several, is one of some kinds."""
    if isinstance(loss, (list, tuple, dict)):
        each = keras.tree.flatten(loss)
        return bool(each) and all(is_one_of(one, kinds) for one in each)
    with contextlib.suppress(ValueError, TypeError):
        loss = keras.losses.get(loss)
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    return isinstance(loss, classes) or loss in kinds


def _losses_with_outputs(
    loss: Any, model: keras.Model | None
) -> list[tuple[Any, tuple[int, ...] | None]]:
    outputs = getattr(model, "outputs", None) or []
    shapes: list[Any] = [tuple(each.shape[1:]) for each in outputs]
    shapes = [None if None in shape else shape for shape in shapes]
    if isinstance(loss, dict):
        names = getattr(model, "output_names", ())
        named = dict(zip(names, shapes, strict=False))
        return [(each, named.get(name)) for name, each in loss.items()]
    losses = loss if isinstance(loss, (list, tuple)) else [loss]
    if len(shapes) != len(losses):
        shapes = [None] * len(losses)
    return list(zip(losses, shapes, strict=True))


def _clip_of_loss(loss: Any, shape: tuple[int, ...] | None) -> float | None:
    """Returns the clip that suits a loss; `None` if it is a mere penalty."""
    if is_one_of(loss, _ERRORS):
        return _CLIP_OF_ERRORS
    if is_one_of(loss, _MEANS_OF_CLASSES):
        return _clip_of_mean(shape)
    if is_one_of(loss, _MEANS_OF_POSITIONS):
        return _clip_of_mean(shape and shape[:-1])
    if loss is None:
        return None
    if not callable(loss) or isinstance(loss, keras.losses.Loss):
        return _CLIP
    return _clip_of_function(loss, shape)


def _clip_of_mean(shape: tuple[int, ...] | None) -> float:
    nearest = round(-math.log2(max(1, math.prod(shape or ()))) / 2)
    return max(_CLIP_OF_ERRORS, _CLIP * 2.0**nearest)


def _clip_of_function(loss: Any, shape: tuple[int, ...] | None) -> float | None:
    """Returns the clip that suits a function, by what it does with numbers.

    A function of the errors alone is 0 without any, and the same where targets
    and outputs are moved alike. One that is a multiple of a binary cross
    entropy is a mean over classes. One that does not see the targets is a
    penalty on the outputs.
    """
    draw = np.random.Generator(np.random.Philox(0)).uniform
    size = (8, *(shape or (6,)))
    y, other = draw(0.1, 0.9, (2, *size))

    def values(y: Any, outputs: Any) -> Any:
        found = loss(
            tf.constant(y, tf.float32), tf.constant(outputs, tf.float32)
        )
        return np.ravel(keras.ops.convert_to_numpy(found))

    try:
        found = values(y, other)
        if np.allclose(values(draw(0.1, 0.9, size), other), found):
            return None
        moved = values(y + 0.5, other + 0.5)
        if np.allclose(values(y, y), 0, atol=1e-5) and np.allclose(
            moved, found, rtol=1e-3
        ):
            return _CLIP_OF_ERRORS
        for from_logits in (False, True):
            entropy = keras.losses.BinaryCrossentropy(from_logits=from_logits)
            bits = y > 0.5
            ratios = [
                np.mean(values(each, other)) / float(entropy(each, other))
                for each in (bits, 1 - bits, y)
            ]
            if np.allclose(ratios, ratios[0], rtol=1e-3):
                return _clip_of_mean(shape)
    except Exception:  # noqa: BLE001 - it may expect any other numbers.
        return _CLIP
    return _CLIP
