"""The pixels that the taps of a convolution see, and products with them.

The gradient of a kernel at tap k is the sum, over output pixels, of the outer
products of the pixel that the tap sees and of the cotangent. Copying a patch
for each output pixel takes longer than the products themselves. So the taps are
split: the columns of the kernel are copied on the side of the images, and its
rows on the side of the cotangent. A product of both has each tap once. In place
of `columns * rows` copies of the images there are `columns` of them, and `rows`
of the cotangent.

Slices with a stride copy number by number. An axis of `n` pixels is therefore
reshaped to `[n / stride, stride]`. A tap then has a *phase*, its place within a
stride, and a *shift*, the number of strides before it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_dp.gradients.records.convolution_records import KernelBlock


class Geometry(NamedTuple):
    """How a convolution moves over its images, channels last.

    Attributes:
        kernel: The number of taps along each spatial axis.
        strides: The pixels between neighbouring outputs.
        dilation: The pixels between neighbouring taps.
        before: The number of zeros before the images.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]


class TapRun(NamedTuple):
    """Taps of an axis that lie side by side.

    Attributes:
        shift: The shift of all. `None` stands for all shifts at once.
        phase: The phase of the first tap, below the stride.
        taps: The number of taps. It is 1 on all axes but the last.
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
    """Returns the geometry of a convolution with TensorFlow's padding.

    The size is that of the images. The padding is "valid", "same", or "causal".
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
    """Returns the pixels that the taps see, with zeros for the padding.

    They are `[batch, n / stride, stride, ..., n / stride, stride * channels]`.
    The images are `[batch, *size, channels]`. `outputs` has the number of
    output pixels along each axis.
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


def all_runs(geometry: Geometry, first: int) -> list[tuple[TapRun, ...]]:
    """Returns all taps of the axes from `first` on, in the order of the kernel.

    Along the last axis, taps side by side with one shift form a run.
    """
    combinations: list[tuple[TapRun, ...]] = [()]
    last = len(geometry.kernel) - 1
    for axis in range(first, last + 1):
        runs = _runs(geometry, axis, joins=axis == last)
        combinations = [(*taps, run) for taps in combinations for run in runs]
    return combinations


def seen(
    phases: tf.Tensor,
    taps: Sequence[TapRun],
    outputs: Sequence[int],
    geometry: Geometry,
) -> tf.Tensor:
    """Returns the pixels that a run of taps sees, for each output pixel.

    They are `[batch, *outputs, count * channels]`, where `count` is the number
    of taps along the last axis. An axis whose shift is `None` has all shifts in
    place of the output pixels. There is one run for each axis.
    """
    batch = phases.shape[0]
    channels = phases.shape[-1] // geometry.strides[-1]
    begin, size, shape = [0], [batch], [batch]
    for axis, (run, count) in enumerate(zip(taps, outputs, strict=True)):
        pixels = phases.shape[1 + 2 * axis] if run.shift is None else count
        begin += [run.shift or 0, run.phase]
        size += [pixels, run.taps]
        shape.append(pixels)
    # The phases of the last axis are joined with the channels.
    begin[-1] *= channels
    size[-1] *= channels
    return tf.reshape(tf.slice(phases, begin, size), [*shape, size[-1]])


def _runs(geometry: Geometry, axis: int, *, joins: bool) -> list[TapRun]:
    stride, gap = geometry.strides[axis], geometry.dilation[axis]
    runs: list[TapRun] = []
    for tap in range(geometry.kernel[axis]):
        shift, phase = divmod(gap * tap, stride)
        if joins and gap == 1 and runs and runs[-1].shift == shift:
            runs[-1] = runs[-1]._replace(taps=runs[-1].taps + 1)
        else:
            runs.append(TapRun(shift, phase, 1))
    return runs


def split_products(
    images: tf.Tensor, cotangent: tf.Tensor, geometry: Geometry
) -> list[KernelBlock]:
    """Returns the gradients in blocks, which have each row of taps once.

    The images are `[batch, *size, channels]`, and the cotangent `[batch,
    *outputs, filters]`.
    """
    count, *inner = cotangent.shape[1:-1]
    phases = phases_of(images, cotangent.shape[1:-1], geometry)
    blocks = []
    for shifts, by_residue in _rows(geometry).items():
        left = _columns(phases, list(by_residue), [count, *inner], geometry)
        rows = tuple(by_residue.values())
        if left.shape[-1] > cotangent.shape[-1]:
            # Copy the narrower side.
            most = max(shifts)
            moved = [_moved(cotangent, shift, most - shift) for shift in shifts]
            product = _product(
                left[:, : count + most], tf.concat(moved, axis=-1)
            )
            blocks.append(KernelBlock(product, rows))
            continue
        for place, shift in enumerate(shifts):
            product = _product(left[:, shift : shift + count], cotangent)
            own = tuple((each[place],) for each in rows)
            blocks.append(KernelBlock(product, own))
    return blocks


def patches(
    images: tf.Tensor, outputs: Sequence[int], geometry: Geometry
) -> tf.Tensor:
    """Returns the patches, `[batch, pixels, taps * channels]`."""
    phases = phases_of(images, outputs, geometry)
    columns = [
        seen(phases, taps, outputs, geometry)
        for taps in all_runs(geometry, first=0)
    ]
    return tf.reshape(
        _beside(columns), [images.shape[0], math.prod(outputs), -1]
    )


def _rows(
    geometry: Geometry,
) -> dict[tuple[int, ...], dict[int, tuple[int, ...]]]:
    """Returns the rows of taps, by the shifts of a phase and then by the phase.

    The rows of one phase see the same rows of the images, shifted. Phases with
    the same shifts share one product.
    """
    stride, gap = geometry.strides[0], geometry.dilation[0]
    places = [divmod(gap * row, stride) for row in range(geometry.kernel[0])]
    groups: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
    for residue in sorted({phase for _, phase in places}):
        rows = [i for i, (_, phase) in enumerate(places) if phase == residue]
        shifts = tuple(places[row][0] for row in rows)
        groups.setdefault(shifts, {})[residue] = tuple(rows)
    return groups


def _columns(
    phases: tf.Tensor,
    residues: list[int],
    outputs: Sequence[int],
    geometry: Geometry,
) -> tf.Tensor:
    """Returns all image rows of some phases, with the taps of the other axes.

    They are `[batch, rows, *outputs[1:], residues * columns * channels]`. The
    residues are the phases of the first axis.
    """
    return _beside(
        [
            seen(phases, (TapRun(None, residue, 1), *taps), outputs, geometry)
            for residue in residues
            for taps in all_runs(geometry, first=1)
        ]
    )


def _moved(cotangent: tf.Tensor, before: int, behind: int) -> tf.Tensor:
    rest = [[0, 0]] * (cotangent.shape.rank - 2)
    return tf.pad(cotangent, [[0, 0], [before, behind], *rest])


def _product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns the sum of outer products over pixels, for each example."""
    pixels = math.prod(left.shape[1:-1])
    return tf.matmul(
        tf.reshape(left, [left.shape[0], pixels, left.shape[-1]]),
        tf.reshape(right, [right.shape[0], pixels, right.shape[-1]]),
        transpose_a=True,
    )


def _beside(parts: list[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)
