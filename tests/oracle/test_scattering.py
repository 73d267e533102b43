"""Scattering coefficients against Kymatio's, and against their definition.

The numbers of Kymatio 0.3.0, with NumPy 1.26 and SciPy 1.14, were made by

    from kymatio.numpy import Scattering2D
    Scattering2D(J, shape, L)(image(*shape))
"""

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
