"""Kernel gradients of convolutions, one per example.

The gradient of a kernel at tap k is the sum, over output pixels, of the outer
products of the pixel that the tap sees and of the cotangent. Copying a patch
for each output pixel takes longer than the products themselves. So the taps are
split: the columns of the kernel are copied on the side of the images, and its
rows on the side of the cotangent. A product of both has each tap once. In place
of `columns * rows` copies of the images there are `columns` of them, and `rows`
of the cotangent.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_dp.gradients.records.split_kernel_records import Block
from keras_dp.gradients.rules.convolution_phases import (
    Geometry,
    Run,
    all_runs,
    phases_of,
    seen,
)


def split_products(
    images: tf.Tensor, cotangent: tf.Tensor, geometry: Geometry
) -> list[Block]:
    """Returns the gradients in blocks, which have each row of taps once.

    Args:
        images: `[batch, *size, channels]`.
        cotangent: `[batch, *outputs, filters]`.
        geometry: The geometry of the convolution.
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
            blocks.append(Block(product, rows))
            continue
        for place, shift in enumerate(shifts):
            product = _product(left[:, shift : shift + count], cotangent)
            own = tuple((each[place],) for each in rows)
            blocks.append(Block(product, own))
    return blocks


def patches(
    images: tf.Tensor, outputs: Sequence[int], geometry: Geometry
) -> tf.Tensor:
    """Returns the patches of the output pixels.

    Args:
        images: `[batch, *size, channels]`.
        outputs: The number of output pixels along each axis.
        geometry: The geometry of the convolution.

    Returns:
        `[batch, pixels, taps * channels]`.
    """
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

    Args:
        phases: From `phases_of`.
        residues: The phases of the first axis.
        outputs: The number of output pixels along each axis.
        geometry: The geometry of the convolution.

    Returns:
        `[batch, rows, *outputs[1:], residues * columns * channels]`.
    """
    return _beside(
        [
            seen(phases, (Run(None, residue, 1), *taps), outputs, geometry)
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
