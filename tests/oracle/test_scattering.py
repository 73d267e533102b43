"""Scattering coefficients against Kymatio's, and against their definition.

The numbers of Kymatio 0.3.0, with NumPy 1.26 and SciPy 1.14, were made by

    from kymatio.numpy import Scattering2D
    Scattering2D(J, shape, L)(image(*shape))
"""

import math

import numpy as np
import pytest

from keras_dp.layers import Scattering2D


def image(height, width):
    y, x = np.mgrid[:height, :width]
    return np.cos(0.7 * y + 0.2 * x * y) + (x > y)


# J, L, the shape of the image; coefficients by (feature, row, column), and
# the sums of all coefficients and of their squares.
OF_KYMATIO = [
    (
        *(2, 8, (28, 28)),
        {
            (0, 0, 0): 0.693465283,
            (0, 6, 3): -0.000903195466,
            (1, 0, 0): 0.0888460135,
            (1, 6, 3): 0.00997036732,
            (8, 0, 0): 0.0498880987,
            (8, 6, 3): 0.00274074707,
            (40, 0, 0): 0.0140622518,
            (40, 6, 3): 0.00872973655,
            (80, 0, 0): 0.00477983871,
            (80, 6, 3): 0.00118991802,
        },
        (129.51572203490142, 36.14479043667287),
    ),
    (
        *(3, 3, (17, 23)),
        {
            (0, 0, 0): 0.628346824,
            (0, 1, 1): 0.711597098,
            (1, 0, 0): 0.344867345,
            (1, 1, 1): 0.310316512,
            (18, 0, 0): 0.0124513727,
            (18, 1, 1): 0.0126704195,
            (36, 0, 0): 0.0273183581,
            (36, 1, 1): 0.012146235,
        },
        (10.362806137490024, 3.2141680398471806),
    ),
    (
        *(1, 4, (9, 12)),
        {
            (0, 0, 0): 0.696675506,
            (0, 3, 3): 0.245554038,
            (2, 0, 0): 0.263191412,
            (2, 3, 3): 0.241050467,
            (4, 0, 0): 0.0959908319,
            (4, 3, 3): 0.144378859,
        },
        (32.56930227375624, 19.429273098471455),
    ),
]


def scattered(pixels, *arguments, dtype="float64"):
    """Returns the features of one image, `[features, height, width]`."""
    layer = Scattering2D(*arguments, dtype=dtype)
    return np.transpose(
        layer(pixels[np.newaxis, :, :, np.newaxis])[0], [2, 0, 1]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("scales", "orientations", "shape", "some", "sums"), OF_KYMATIO
)
def test_the_numbers_are_those_of_kymatio(
    scales, orientations, shape, some, sums, dtype
) -> None:
    """Kymatio builds its filters in complex64: hence the tolerance."""
    found = scattered(image(*shape), scales, orientations, dtype=dtype)

    at = tuple(np.transpose(list(some)))
    np.testing.assert_allclose(found[at], list(some.values()), atol=1e-6)
    both = found.sum(dtype="float64"), (found.astype("float64") ** 2).sum()
    np.testing.assert_allclose(both, sums, rtol=1e-6)


def morlet(height, width, scale, turns, orientations):
    """The wavelet from its formula, `[height, width]`, centred at (0, 0)."""
    sigma, slant = 0.8 * 2**scale, 4 / orientations
    angle = turns * math.pi / orientations
    wave = np.zeros((height, width), complex)
    envelope = np.zeros((height, width))
    for copy in np.ndindex(5, 5):
        y, x = np.mgrid[:height, :width]
        y = y + (copy[0] - 2) * height
        x = x + (copy[1] - 2) * width
        along = y * math.cos(angle) + x * math.sin(angle)
        across = x * math.cos(angle) - y * math.sin(angle)
        gauss = np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2))
        envelope += gauss
        wave += gauss * np.exp(0.75j * math.pi / 2**scale * along)
    wave -= envelope * wave.sum() / envelope.sum()
    return wave * slant / (2 * math.pi * sigma**2)


def gaussian(height, width, scales):
    sigma = 0.8 * 2 ** (scales - 1)
    y, x = np.mgrid[-3 * height : 3 * height, -3 * width : 3 * width]
    values = np.exp(-(x**2 + y**2) / (2 * sigma**2))
    values = values.reshape(6, height, 6, width).sum(axis=(0, 2))
    return values / (2 * math.pi * sigma**2)


def convolved(signal, kernel):
    """The circular convolution, one shifted copy after another."""
    return sum(
        signal[shift] * np.roll(kernel, shift, (0, 1))
        for shift in np.ndindex(signal.shape)
    )


def by_definition(pixels, scales, orientations):
    """Scattering without a step that saves time, at all pixels."""
    step = 2**scales
    sizes = [((size + step) // step + 1) * step for size in pixels.shape]
    added = [new - old for new, old in zip(sizes, pixels.shape, strict=True)]
    padded = np.pad(
        pixels, [(each // 2, (each + 1) // 2) for each in added], "reflect"
    )
    low = gaussian(*sizes, scales)
    filters = [
        (
            scale,
            morlet(*sizes, scale, (orientations - 2) / 2 - place, orientations),
        )
        for scale in range(scales)
        for place in range(orientations)
    ]
    orders = [[padded], [], []]
    for scale, wavelet in filters:
        first = np.abs(convolved(padded, wavelet))
        orders[1].append(first)
        orders[2] += [
            np.abs(convolved(first, other))
            for coarser, other in filters
            if coarser > scale
        ]
    return np.stack(
        [
            convolved(each, low)[step:-step:step, step:-step:step]
            for order in orders
            for each in order
        ]
    )


def test_of_one_scale_follows_the_definition() -> None:
    """Nothing is subsampled in between. The rest is Kymatio's 3.1415."""
    pixels = image(8, 11)

    expected = by_definition(pixels, 1, 2)

    found = scattered(pixels, 1, 2)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_of_two_scales_follows_the_definition_nearly() -> None:
    """Moduli are subsampled before they are averaged, and alias a little."""
    pixels = image(8, 10)

    expected = by_definition(pixels, 2, 2)
    found = scattered(pixels, 2, 2)

    def differs_by(order, moved=0):
        moved = np.roll(found[order], moved, axis=0)
        error = np.linalg.norm(moved - expected[order])
        return error / np.linalg.norm(expected[order])

    orders = slice(0, 1), slice(1, 5), slice(5, 9)
    assert differs_by(orders[0]) < 1e-4
    assert differs_by(orders[1]) < 0.03
    assert differs_by(orders[2]) < 0.1
    # Control: of other wavelets they are others.
    assert differs_by(orders[1], moved=1) > 0.5
    assert differs_by(orders[2], moved=1) > 0.3
