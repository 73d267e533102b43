"""A Keras callback that shows how much of the answers is signal."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_dp._override import override
from keras_dp.keras_internals import print_line
from keras_dp.optimizers.answer_sizes import Sizes

# An estimate is taken to be off by at most so many standard deviations.
_STANDARD_DEVIATIONS = 3.0
_MOST_NAMES = 5


class SignalProgress(keras.callbacks.Callback):
    """Adds `signal_to_noise` to the logs of each epoch, and advice at the end.

    The answer to a round is a sum of clipped gradients, plus noise of a known
    variance. The squared norm of the answer, less the expected squared norm of
    the noise, estimates the squared norm of the sum. Both are added up over all
    weights and over the rounds of an epoch. The log is the root of their ratio,
    or 0 if the estimate is negative.

    At the end of the training one line names the layers whose weights noise
    moved further than the signal could, if there are any. It is not said of
    layers for which the estimate is too uncertain. Nothing is shown before the
    first round, nor if the noise has no known variance: `sizes` is then `None`.

    Guarantee: all of it is computed from noised answers and public numbers, so
    it costs no privacy.
    """

    def __init__(self, sizes: Callable[[], Sizes | None]) -> None:
        super().__init__()
        self._sizes = sizes
        self._at_begin: Sizes | None = None
        self._at_epoch: Sizes | None = None

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        self._at_begin = self._at_epoch = self._sizes()

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = self._sizes()
        if now is None:
            return
        sizes, self._at_epoch = now.since(self._at_epoch), now
        if logs is not None and sizes.noise.sum() > 0:
            logs["signal_to_noise"] = math.sqrt(_signal(sizes))

    @override
    def on_train_end(self, logs: Any = None) -> None:
        now = self._sizes()
        if not self.params.get("verbose") or now is None:
            return
        text = advice_on_layers(now.since(self._at_begin))
        if text:
            print_line(text)


def advice_on_layers(sizes: Sizes) -> str:
    """Returns what to do, empty if every layer may have learned."""
    of_layer: dict[str, list[int]] = {}
    for i, path in enumerate(sizes.paths):
        of_layer.setdefault(path.rpartition("/")[0] or path, []).append(i)
    lost = []
    for name, members in of_layer.items():
        own = Sizes(
            (),
            sizes.coordinates[members],
            sizes.rounds,
            sizes.answers[members],
            sizes.noise[members],
        )
        if own.noise.sum() > 0 and _most_drift(own) < 1:
            lost.append(f"{name} ({int(own.coordinates.sum()):,} weights)")
    if not lost:
        return ""
    names = ", ".join(lost[:_MOST_NAMES])
    more = len(lost) - _MOST_NAMES
    if more > 0:
        names += f" and {more} more layers"
    return (
        f"Noise moved the weights of {names} further than the signal of all "
        "rounds could. They may still have learned. Fewer weights, frozen "
        "layers or fixed features, as of a scattering network, may do better "
        "(docs/choosing.md)."
    )


def _most_drift(sizes: Sizes) -> float:
    """Returns how far signals could move weights, beside what noise did.

    It is an upper bound on the squared distance for SGD and signals that all
    point the same way, divided by the expected squared distance of the noise.
    """
    # The squared norm of d normal numbers over R rounds, relative to its mean,
    # has the standard deviation sqrt(2 / (d R)). It is larger where the
    # variables of a layer differ in their noise.
    shares = sizes.noise / sizes.noise.sum()
    spread = math.sqrt(
        2 / max(1, sizes.rounds) * np.sum(shares**2 / sizes.coordinates)
    )
    return sizes.rounds * (_signal(sizes) + _STANDARD_DEVIATIONS * spread)


def _signal(sizes: Sizes) -> float:
    """Returns the squared norm of the signal, divided by that of the noise."""
    noise = float(sizes.noise.sum())
    return max(0.0, float(sizes.answers.sum()) - noise) / noise
