"""The pixels that the taps of a convolution see, sliced without a stride.

Slices with a stride copy number by number. An axis of `n` pixels is therefore
seen as `[n / stride, stride]`: a tap then has a *phase*, its place within a
stride, and a *shift*, the strides before it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Geometry(NamedTuple):
    """How a convolution moves over its images, channels last.

    Attributes:
        kernel: Taps along each spatial axis.
        strides: Strides of the output, along each axis.
        dilation: Between taps, along each axis.
        before: Zeros in front of the images, along each axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]


class Run(NamedTuple):
    """Taps of an axis that lie side by side.

    Attributes:
        shift: Strides before them; `None` takes the whole axis.
        phase: Phase of the first, below the stride.
        taps: How many, 1 but on the last axis.
    """

    shift: int | None
    phase: int
    taps: int


def geometry(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: str,
) -> Geometry:
    """Returns the geometry of a convolution as TensorFlow pads.

    Args:
        size: Size of the images, along each spatial axis.
        kernel: As in `Geometry`.
        strides: As in `Geometry`.
        dilation: As in `Geometry`.
        padding: "valid", "same", or "causal".
    """
    before = []
    for length, taps, stride, gap in zip(
        size, kernel, strides, dilation, strict=True
    ):
        reach = gap * (taps - 1)
        if padding == "same":
            last = (-(-length // stride) - 1) * stride
            before.append(max(last + reach + 1 - length, 0) // 2)
        else:
            before.append(reach if padding == "causal" else 0)
    return Geometry(
        tuple(kernel), tuple(strides), tuple(dilation), tuple(before)
    )


def phases_of(
    images: tf.Tensor, outputs: Sequence[int], geometry: Geometry
) -> tf.Tensor:
    """Returns what the taps see, with zeros around and without the rest.

    Args:
        images: `[batch, *size, channels]`.
        outputs: Pixels of the output along each axis.
        geometry: Geometry of the convolution.

    Returns:
        `[batch, n / stride, stride, ..., n / stride, stride * channels]`.
    """
    kernel, strides, dilation, before = geometry
    paddings, shape = [[0, 0]], [images.shape[0]]
    for axis, count in enumerate(outputs):
        stride = strides[axis]
        seen_pixels = count * stride + dilation[axis] * (kernel[axis] - 1)
        length = -(-seen_pixels // stride) * stride
        behind = length - before[axis] - images.shape[axis + 1]
        if behind < 0:
            keep = images.shape[axis + 1] + behind
            images = images[(slice(None),) * (axis + 1) + (slice(keep),)]
        paddings.append([before[axis], max(behind, 0)])
        shape += [length // stride, stride]
    if any(map(any, paddings)):
        images = tf.pad(images, [*paddings, [0, 0]])
    return tf.reshape(images, [*shape[:-1], shape[-1] * images.shape[-1]])


def all_runs(geometry: Geometry, first: int) -> list[tuple[Run, ...]]:
    """Returns all taps of the axes from `first` on, those of the last in runs.

    In the order of the kernel.
    """
    combinations: list[tuple[Run, ...]] = [()]
    last = len(geometry.kernel) - 1
    for axis in range(first, last + 1):
        runs = _runs(geometry, axis, joins=axis == last)
        combinations = [(*taps, run) for taps in combinations for run in runs]
    return combinations


def seen(
    phases: tf.Tensor,
    taps: Sequence[Run],
    outputs: Sequence[int],
    geometry: Geometry,
) -> tf.Tensor:
    """Returns what some taps see, `[batch, *outputs, count * channels]`.

    Args:
        phases: From `phases_of`.
        taps: One of each axis.
        outputs: Pixels of the output along each axis.
        geometry: Geometry of the convolution.
    """
    batch = phases.shape[0]
    channels = phases.shape[-1] // geometry.strides[-1]
    begin, size, shape = [0], [batch], [batch]
    for axis, (run, count) in enumerate(zip(taps, outputs, strict=True)):
        pixels = phases.shape[1 + 2 * axis] if run.shift is None else count
        begin += [run.shift or 0, run.phase]
        size += [pixels, run.taps]
        shape.append(pixels)
    # The last stride is joined with the channels.
    begin[-1] *= channels
    size[-1] *= channels
    return tf.reshape(tf.slice(phases, begin, size), [*shape, size[-1]])


def _runs(geometry: Geometry, axis: int, *, joins: bool) -> list[Run]:
    stride, gap = geometry.strides[axis], geometry.dilation[axis]
    runs: list[Run] = []
    for tap in range(geometry.kernel[axis]):
        shift, phase = divmod(gap * tap, stride)
        if joins and gap == 1 and runs and runs[-1].shift == shift:
            runs[-1] = runs[-1]._replace(taps=runs[-1].taps + 1)
        else:
            runs.append(Run(shift, phase, 1))
    return runs
