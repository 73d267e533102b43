"""Scattering: fixed wavelet features of images."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from keras_dp import _check
from keras_dp._override import override

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


def wavelets_of(
    height: int, width: int, scale: int, orientations: int
) -> Floats:
    """Returns the wavelets of a scale, which have mean 0 exactly.

    They are Fourier transforms, `[orientations, height, width]`, and real,
    because a wavelet at `-u` is the conjugate of the one at `u`. They are the
    finest ones, dilated by `2^scale`. The angles divide a half turn.
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

    It is a Fourier transform, `[size]`. The low-pass filter of images is the
    product of this one along each axis.
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

    The filters are Fourier transforms. The lowest frequencies of each of the
    last `axes` are kept.
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


class _Scale(NamedTuple):
    """The filters of images whose resolution was halved `j` times.

    Attributes:
        wavelets: Scales, and the wavelets of each, `[orientations, height,
            width]`.
        rows: The low-pass filter along the rows, `[2 * height, out_height]`.
        columns: The same along the columns, `[width, 2 * out_width]`.
    """

    wavelets: list[tuple[int, Floats]]
    rows: Floats
    columns: Floats

    def coarser(self, scale: int) -> list[tuple[int, Floats]]:
        return [each for each in self.wavelets if each[0] > scale]


@keras.saving.register_keras_serializable(package="keras_dp")
class Scattering2D(keras.layers.Layer):
    """Wavelet features of images, without weights: the scattering transform.

    It averages each channel of an image over windows of `2^J` pixels (order 0),
    the moduli of its wavelet transform (order 1), and the moduli of the wavelet
    transforms of these (order 2). So a channel has `K = 1 + L J + L^2 J (J - 1)
    / 2` features: 81 for J = 2 and L = 8, 217 for J = 3.

    With privacy, fixed features and a small model on top of them are better
    than a convolutional network up to several units of epsilon, because the
    noise of a step grows with the number of weights and features that are not
    learned cost nothing. The layer looks at one image at a time, and it has no
    weights, so its use costs no privacy. The features of a data set can be
    computed once, by `predict`, and stored.

    Args:
        J: The number of scales, at least 1. Height and width become `2^J` times
            smaller, and must be greater than `2^J` pixels.
        L: The number of orientations, at least 1.
        data_format: "channels_last" or "channels_first". By default, that of
            `keras.config.image_data_format()`.
        **kwargs: Those of `keras.layers.Layer`.

    Inputs:
        Images, `[batch, height, width, channels]`, or `[batch, channels,
        height, width]` with "channels_first". Numbers of any kind. They are
        padded by reflection.

    Outputs:
        `[batch, height // 2^J, width // 2^J, channels * K]`, or `[batch,
        channels * K, ...]`. The K features of a channel are neighbours, in the
        order of Kymatio: order 0, then order 1 by scale and orientation, then
        order 2 by those of the first wavelet and of the second. Features are
        computed in float32, or in float64 where that is the layer's dtype.

    Raises:
        ValueError: `J` or `L` is below 1, the images have not three axes or
            a size that is not known, or they are too small for `J`.

    Source: Bruna and Mallat (2013), arXiv:1203.1513v2. The numbers are those of
        `Scattering2D` of Kymatio 0.3 (Andreux et al. 2018,
        arXiv:1812.11214v3), which has channels first and in an axis of their
        own. Tramer and Boneh (2021), arXiv:2011.11660v3, train private models
        on these features.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).random((2, 28, 28, 1))
    >>> Scattering2D(J=2, L=8)(images).shape
    TensorShape([2, 7, 7, 81])
    """

    def __init__(
        self,
        J: int,  # noqa: N803 (the letters of the field, and of Kymatio)
        L: int = 8,  # noqa: N803
        *,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check.integer_at_least(1, J=J)
        _check.integer_at_least(1, L=L)
        if data_format is None:
            data_format = keras.config.image_data_format()
        _check.one_of(
            ("channels_last", "channels_first"), data_format=data_format
        )
        super().__init__(**kwargs)
        self.J, self.L, self.data_format = J, L, data_format

    @override
    def build(self, input_shape: tuple[int | None, ...]) -> None:
        height, width, _ = self._checked_sizes(input_shape)
        self._padding = _padding(height, self.J), _padding(width, self.J)
        self._scales = _scales(
            padded_size(height, self.J),
            padded_size(width, self.J),
            self.J,
            self.L,
        )
        self.built = True

    @override
    def call(self, images: Any) -> Any:
        wide = self.compute_dtype == "float64"
        images = tf.cast(images, tf.float64 if wide else tf.float32)
        if self.data_format == "channels_last":
            images = tf.transpose(images, [0, 3, 1, 2])
        channels = images.shape[1]
        images = tf.pad(images, [[0, 0], [0, 0], *self._padding], "REFLECT")
        # Images with one channel each, and an axis of features.
        images = tf.reshape(images, [-1, 1, *images.shape[2:]])
        # `[batch * channels, features, out_width, out_height]`
        features = tf.concat(self._orders(images), axis=1)
        features = tf.cast(features, self.compute_dtype)
        _, count, width, height = features.shape
        count *= channels
        features = tf.reshape(features, [-1, count, width, height])
        if self.data_format == "channels_first":
            return tf.transpose(features, [0, 1, 3, 2])
        return tf.transpose(features, [0, 3, 2, 1])

    @override
    def compute_output_shape(
        self, input_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        height, width, channels = self._checked_sizes(input_shape)
        J, L = self.J, self.L  # noqa: N806
        features = 1 + L * J + L**2 * J * (J - 1) // 2
        pixels = height // 2**J, width // 2**J
        if self.data_format == "channels_last":
            return (input_shape[0], *pixels, channels * features)
        return (input_shape[0], channels * features, *pixels)

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "J": self.J,
            "L": self.L,
            "data_format": self.data_format,
        }

    def _checked_sizes(
        self, input_shape: tuple[int | None, ...]
    ) -> tuple[int, int, int]:
        """Returns height, width and channels of images that can be scattered.

        Raises:
            ValueError: See the class.
        """
        sizes = [size for size in input_shape[1:] if size is not None]
        if len(input_shape) != 4 or len(sizes) != 3:
            raise ValueError(
                "`images` must have three axes of known size besides the "
                f"batch: height, width and channels. Received: images.shape="
                f"{tuple(input_shape)}. Add an axis of one channel to images "
                "in grey, by `keras.layers.Reshape((height, width, 1))`."
            )
        if self.data_format == "channels_first":
            sizes = [*sizes[1:], sizes[0]]
        height, width, channels = sizes
        if min(height, width) <= 2**self.J:
            deepest = (min(height, width) - 1).bit_length() - 1
            advice = (
                f"Take J={deepest} or less, or enlarge the images."
                if deepest > 0
                else "These images are too small for scattering."
            )
            raise ValueError(
                "`J` must be so small that 2^J is below the height and the "
                f"width of the images. Received: J={self.J} for images of "
                f"{height} x {width} pixels. {advice}"
            )
        return height, width, channels

    def _orders(self, images: Any) -> list[Any]:
        """Returns the features of all orders, each `[images, n, ...]`."""
        finest = self._scales[0]
        order_1, order_2 = [], []
        spectrum = _spectrum(images)
        for scale, wavelets in finest.wavelets:
            first = _moduli(spectrum, wavelets, 2**scale)
            order_1.append(_averages(first, self._scales[scale]))
            inner = _spectrum(first)
            found = []
            for coarser, others in self._scales[scale].coarser(scale):
                second = _moduli(inner, others, 2 ** (coarser - scale))
                averages = _averages(second, self._scales[coarser])
                shape = [-1, self.L, self.L, *averages.shape[2:]]
                found.append(tf.reshape(averages, shape))
            if found:
                # All second wavelets of a first one are neighbours.
                joined = tf.concat(found, axis=2)
                shape = [-1, self.L * joined.shape[2], *joined.shape[3:]]
                order_2.append(tf.reshape(joined, shape))
        return [_averages(images, finest), *order_1, *order_2]


def _padding(size: int, scales: int) -> tuple[int, int]:
    """Returns the number of pixels before and behind an axis of images."""
    added = padded_size(size, scales) - size
    return added // 2, (added + 1) // 2


def _scales(
    height: int, width: int, scales: int, orientations: int
) -> list[_Scale]:
    """Returns the filters of every resolution of padded images."""
    finest = [
        wavelets_of(height, width, scale, orientations)
        for scale in range(scales)
    ]
    found = []
    for halvings in range(scales):
        down, across = (
            _low_pass(size, scales, halvings) for size in (height, width)
        )
        wavelets = [
            (scale, at_resolution(finest[scale], halvings, 2))
            for scale in range(halvings, scales)
        ]
        # The real part of a product of complex matrices.
        rows = np.concatenate([down.real, -down.imag], axis=1).T
        columns = np.concatenate([across.real, across.imag], axis=0).T
        found.append(_Scale(wavelets, rows, columns))
    return found


def _low_pass(size: int, scales: int, halvings: int) -> NDArray[np.complex128]:
    """Returns the matrix that averages, keeps some pixels, and cuts the rest.

    It is `[pixels, size / 2^halvings]`.
    """
    spectrum = at_resolution(low_pass(size, scales), halvings, 1)
    filter_ = np.fft.ifft(spectrum)
    length = len(filter_)
    step = 2 ** (scales - halvings)
    # One pixel on each side is of the padding.
    kept = np.arange(step, length - step, step)
    return filter_[(kept[:, np.newaxis] - np.arange(length)) % length]


def _spectrum(images: Any) -> Any:
    return tf.signal.fft2d(tf.complex(images, tf.zeros_like(images)))


def _moduli(spectrum: Any, wavelets: Floats, step: int) -> Any:
    """Returns the moduli of a wavelet transform, of every `step`-th pixel.

    To keep every `step`-th pixel is to add up the frequencies that then look
    the same. The spectrum of the images is `[images, n, height, width]`, and
    the result `[images, n * orientations, height / step, width / step]`.
    """
    orientations, *size = wavelets.shape
    count, height, width = spectrum.shape[1], *(each // step for each in size)
    pixels, same = height * width, step**2
    # The frequencies that look the same become the last axis. The images stay
    # before all axes of their own, which shows that they are kept apart.
    parts = tf.stack([tf.math.real(spectrum), tf.math.imag(spectrum)], axis=2)
    parts = tf.reshape(parts, [-1, step, height, step, width])
    parts = tf.transpose(parts, [2, 4, 0, 1, 3])
    filters = wavelets.reshape(orientations, step, height, step, width)
    filters = filters.transpose(2, 4, 1, 3, 0) / same
    folded = tf.matmul(
        tf.reshape(parts, [pixels, -1, same]),
        tf.constant(filters.reshape(pixels, same, orientations), parts.dtype),
    )
    folded = tf.transpose(tf.reshape(folded, [pixels, -1]))
    real, imaginary = tf.unstack(
        tf.reshape(folded, [-1, 2, orientations, height, width]), axis=1
    )
    found = tf.abs(tf.signal.ifft2d(tf.complex(real, imaginary)))
    return tf.reshape(found, [-1, count * orientations, height, width])


def _averages(images: Any, scale: _Scale) -> Any:
    """Returns averages over windows, `[images, n, out_width, out_height]`.

    The products have matrices alone: in TensorFlow 2.21 those of float32 with
    more axes, of which some are broadcast, are wrong if oneDNN is on.
    """
    _, count, height, width = images.shape
    rows, columns = (
        tf.constant(each, images.dtype) for each in (scale.rows, scale.columns)
    )
    averages = tf.matmul(tf.reshape(images, [-1, width]), columns)
    out_height, out_width = rows.shape[1], columns.shape[1] // 2
    averages = tf.reshape(averages, [-1, height, 2, out_width])
    averages = tf.transpose(averages, [0, 3, 2, 1])
    averages = tf.matmul(tf.reshape(averages, [-1, 2 * height]), rows)
    return tf.reshape(averages, [-1, count, out_width, out_height])
