"""Kernel gradients of convolutions, one per example.

The gradient of a kernel at tap k is the product, over output pixels, of what
the tap saw and of the cotangent. Copying all that each pixel saw takes longer
than the products themselves, so the taps are split: those of one row of the
kernel are copied beside one another on the side of the images, the rows of the
kernel on the side of the cotangent. A product of both has all taps, each once;
copies are `columns + rows` instead of `columns * rows` as large.
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

# Numbers that lie together, below which slices are slower than a convolution
# that copies, and how many of them it may copy for each pixel.
_SHORT_RUN = 8
_SMALL_PATCH = 128


def split_products(
    images: tf.Tensor, cotangent: tf.Tensor, geometry: Geometry
) -> list[Block]:
    """Returns the gradients in blocks that hold each row of taps once.

    Args:
        images: `[batch, *size, channels]`.
        cotangent: `[batch, *outputs, filters]`.
        geometry: Geometry of the convolution.
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
    """Returns what each output pixel saw, `[batch, pixels, taps * channels]`.

    Args:
        images: `[batch, *size, channels]`.
        outputs: Pixels of the output along each axis.
        geometry: Geometry of the convolution.
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
    """Returns the rows of taps: by their shifts, and then by their phase.

    Rows of a phase meet the same rows of the images, shifted; phases with the
    same shifts make one product.
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
    """Returns the rows of some phases, all other axes gathered by tap.

    Shape `[batch, rows, *outputs[1:], residues * columns * channels]`.
    """
    channels = phases.shape[-1] // geometry.strides[-1]
    width = len(residues) * math.prod(geometry.kernel[1:]) * channels
    if (
        len(outputs) == 2
        and geometry.dilation == (1, 1)
        and len(residues) == geometry.strides[0]
        and geometry.strides[1] * channels < _SHORT_RUN
        and width <= _SMALL_PATCH
    ):
        copies = _convolved_columns(phases, width, channels, geometry)
        return copies[:, :, : outputs[1]]
    return _beside(
        [
            seen(phases, (Run(None, residue, 1), *taps), outputs, geometry)
            for residue in residues
            for taps in all_runs(geometry, first=1)
        ]
    )


def _convolved_columns(
    phases: tf.Tensor, width: int, channels: int, geometry: Geometry
) -> tf.Tensor:
    """Returns the same for an image of all phases, copied by a convolution."""
    batch, rows, _, columns, _ = phases.shape
    down, right = geometry.strides
    return tf.nn.conv2d(
        tf.reshape(phases, [batch, rows * down, columns * right, channels]),
        tf.reshape(
            tf.eye(width, dtype=phases.dtype),
            [down, geometry.kernel[1], channels, width],
        ),
        geometry.strides,
        "VALID",
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
