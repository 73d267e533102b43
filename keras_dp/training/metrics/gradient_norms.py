"""How large gradients are on data that is public, such as noise."""

from typing import Any

import keras
import tensorflow as tf

from keras_dp.dp_queries import records as records_lib
from keras_dp.gradients import GradientEngine, example_losses
from keras_dp.keras_internals import compiled_loss_of
from keras_dp.optimizers.groups import Patterns, group_variables


def mean_gradient_norms(
    model: keras.Model,
    loss: Any,
    x: Any,
    y: Any,
    *,
    groups: Patterns | None = None,
) -> dict[str, float]:
    """Returns the mean norm of per-example gradients in each group.

    The mean norm is a first clip if nothing else is known. Van der Veen et al.
    take it from one step on random noise. The model is not changed.

    Guarantee: there is none for `x` and `y`, because the norms have no noise.
    Pass random or public data only.

    Args:
        model: Built.
        loss: Any Keras loss, or its name.
        x: Inputs of the model, leaves `[batch, ...]`.
        y: Targets, leaves `[batch, ...]`.
        groups: Maps the name of a group to the pattern of the paths of its
            variables. By default one group `"gradients"` has all variables.

    Returns:
        The mean norm of each group, over the examples whose norm is finite.

    Raises:
        ValueError: No example has a finite norm, or the groups do not cover
            each variable once.

    Source: van der Veen et al. (2018), arXiv:1812.02890v1, section 2.2.

    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> noise = np.random.Generator(np.random.Philox(0)).standard_normal
    >>> norms = mean_gradient_norms(
    ...     model, "mse", noise([64, 4]).astype("float32"),
    ...     noise([64, 1]).astype("float32"), groups={"head": ...})
    >>> 0.1 < norms["head"] < 100
    True
    """
    if groups is None:
        groups = {"gradients": ...}
    matched = group_variables(model, groups)
    carrier = keras.Model()  # Keras makes losses comparable in compile only.
    carrier.compile(loss=loss)
    compiled_loss = compiled_loss_of(carrier)
    batch = keras.tree.flatten(x)[0].shape[0]
    engine = GradientEngine(model, releases_statistics=True)

    def losses_of(outputs: Any) -> tf.Tensor:
        compiled_loss(y, outputs)  # Builds it.
        return example_losses(compiled_loss, y, outputs, None, batch).total

    x = keras.tree.map_structure(tf.convert_to_tensor, x)
    records = engine.gradients(x, losses_of, batch).records
    means = {}
    for group, parts in matched.split(engine.variables, records).items():
        norms = records_lib.norms(parts)
        finite = tf.boolean_mask(norms, tf.math.is_finite(norms))
        if not len(finite):
            raise ValueError(
                "`x` and `y` must have examples with finite gradients. "
                f"Received: {batch} examples, none of them finite in group "
                f"{group!r}. Look for values that are not finite in the data "
                "and the weights."
            )
        means[group] = float(tf.reduce_mean(finite))
    return means
