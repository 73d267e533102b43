"""Morlet wavelets and their low-pass filter, on a grid, in the Fourier domain.

Source: Bruna and Mallat (2013), arXiv:1203.1513v2. The constants are those of
Kymatio 0.3 (Andreux et al. 2018, arXiv:1812.11214v3), so that scattering
coefficients are the same numbers.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Kymatio's filters are divided by this value of pi.
_PI_OF_KYMATIO = 3.1415
_ENVELOPE = 0.8  # The width of the envelope of the finest wavelet, in pixels.
_FREQUENCY = 3 * math.pi / 4  # Its central frequency, in radians per pixel.
# Copies of a filter on each side that are added to make it periodic.
_COPIES = range(-2, 3)


def padded_size(size: int, scales: int) -> int:
    """Returns the length of an axis of images after padding, in pixels.

    It is a multiple of `2^scales`, with at least `2^scales / 2` pixels more on
    each side.
    """
    step: int = 2**scales
    return ((size + step) // step + 1) * step


def wavelets(height: int, width: int, scale: int, orientations: int) -> Floats:
    """Returns the wavelets of a scale, which have mean 0 exactly.

    Args:
        height: The height of the grid, in pixels.
        width: The width of the grid, in pixels.
        scale: j. The wavelet is the finest one, dilated by `2^j`.
        orientations: L. The number of angles, which divide a half turn.

    Returns:
        Their Fourier transforms, `[orientations, height, width]`. They are
        real, because a wavelet at `-u` is the conjugate of the one at `u`.
    """
    sigma, frequency = _ENVELOPE * 2**scale, _FREQUENCY / 2**scale
    slant = 4 / orientations
    found = []
    for place in range(orientations):
        steps = int(orientations - orientations / 2 - 1) - place
        angle = steps * math.pi / orientations
        wave = _gabor(height, width, sigma, angle, frequency, slant)
        envelope = _gabor(height, width, sigma, angle, 0.0, slant)
        wave -= wave.sum() / envelope.sum() * envelope
        found.append(np.fft.fft2(wave).real)
    return np.stack(found)


def low_pass(size: int, scales: int) -> Floats:
    """Returns the Gaussian of width `0.8 * 2^(scales - 1)` pixels.

    The low-pass filter of images is the product of this one along each axis.

    Args:
        size: The length of the axis, in pixels.
        scales: J, the number of scales.

    Returns:
        Its Fourier transform, `[size]`.
    """
    sigma = _ENVELOPE * 2 ** (scales - 1)
    places = np.arange(size)
    copies = sum(
        np.exp(-((places + size * copy) ** 2) / (2 * sigma**2))
        for copy in _COPIES
    )
    filter_ = copies / math.sqrt(2 * _PI_OF_KYMATIO * sigma**2)
    return np.asarray(np.fft.fft(filter_).real)


def at_resolution(filters: Floats, halvings: int, axes: int) -> Floats:
    """Returns filters for images of which every `2^halvings`-th pixel is kept.

    The lowest frequencies of each axis are kept.

    Args:
        filters: Fourier transforms, `[..., *sizes]`.
        halvings: The number of times that the resolution was halved.
        axes: The number of last axes that are frequencies.
    """
    for axis in range(filters.ndim - axes, filters.ndim):
        size = filters.shape[axis]
        kept = size // 2**halvings
        low = kept // 2
        places = [*range(low), *range(size - kept + low, size)]
        filters = np.take(filters, places, axis)
    return filters


def _gabor(
    height: int,
    width: int,
    sigma: float,
    angle: float,
    frequency: float,
    slant: float,
) -> NDArray[np.complex128]:
    """Returns a wave under a Gaussian, `[height, width]`, made periodic."""
    cosine, sine = math.cos(angle), math.sin(angle)
    total = np.zeros((height, width), np.complex128)
    rows, columns = np.mgrid[:height, :width]
    for down in _COPIES:
        for right in _COPIES:
            y, x = rows + down * height, columns + right * width
            along = y * cosine + x * sine
            across = x * cosine - y * sine
            square = along**2 + (slant * across) ** 2
            total += np.exp(-square / (2 * sigma**2) + 1j * frequency * along)
    return total * slant / (2 * _PI_OF_KYMATIO * sigma**2)
