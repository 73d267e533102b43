"""Computes noised principal directions, for a layer that projects onto them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger import GaussianSum, SumQueryEvent
from keras_dp.preprocessing.columns import (
    ColumnSchema,
    Floats,
    check_numbers,
    number_chunks,
    whole_total,
)
from keras_dp.preprocessing.release import Adapter, noised

# Entries of records are rounded to whole multiples of `1 / _UNITS`. Products
# summed over a chunk are whole numbers up to 2^36 times its 2^17 rows, which
# float64 holds exactly in any order.
_UNITS = 2.0**18
_CHUNK_ROWS = 2**17
# The norm of up to 2^28 entries is rounded by less.
_ROUNDING = 1 + 2.0**-20


@dataclasses.dataclass(frozen=True, slots=True)
class PCA(Adapter):
    """Adapts a `keras.layers.Dense` to noised principal directions.

    Records are scaled to an L2 norm of at most 1, and the sum of `x x^T` gets
    Gaussian noise. The eigenvectors of its largest eigenvalues are the kernel
    of a `keras.layers.Dense(components, use_bias=False)`. As in the paper,
    records are not centred. The layer does not scale its inputs: the directions
    fit the data that were adapted to, and also records in another scale.

    A record of several axes is a set of vectors along the last axis, such as
    the pixels of an image. Its `x x^T` is the sum over these vectors, and the
    directions are those of channels, on which `Dense` works.

    Guarantee: the release is the upper triangle of the sum, with the entries
    off the diagonal multiplied by sqrt(2). A record x contributes a vector of
    L2 norm `sqrt(sum_i x_i^4 + sum_{i<j} 2 x_i^2 x_j^2)`, which is `|x|^2`, at
    most 1. If x is a set of vectors, the norm of the sum of theirs is at most
    the sum of their squared norms, which is `|x|^2` again. The entries of x are
    rounded towards zero to a grid, and sums of
    whole numbers are exact. An entry of the matrix off the diagonal therefore
    has noise of `noise_multiplier / sqrt(2)`. This is half the variance of
    noise on the unscaled triangle, at the same epsilon. Replacing a record
    moves the vector by at most sqrt(2), and accountants count 2. A record with
    an entry that is not finite counts as zero.

    Attributes:
        components: The number of directions, >= 1.
        noise_multiplier: The standard deviation of the noise, divided by the
            bound on one record, > 0.
        l2_norm_clip: Records are divided by it and then clipped to norm 1, > 0,
            in the unit of the data. Shorter records count less. `None` scales
            every record to norm 1, as in the paper.
        whiten: Whether directions are lengthened until the data vary by as much
            along each as along the first. A direction in which the data vary by
            less than the noise, whose eigenvalues reach `noise_multiplier *
            sqrt(2 * width)`, is lengthened as one in which they vary by that.
            A linear model then learns as fast along all directions.
        trainable: Whether a training changes the kernel. The guarantee holds in
            both cases. The paper does not train it.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, section 4; Dwork, Talwar,
    Thakurta and Zhang (2014), "Analyze Gauss", Algorithm 1. The weight of the
    entries off the diagonal is derived here.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> x = np.random.default_rng(1).normal(size=(5000, 3)) * [5.0, 1.0, 0.1]
    >>> ledger = PrivacyLedger.in_memory(dataset="points")
    >>> layer = PCA(1, noise_multiplier=4.0).adapt(x, ledger)
    >>> abs(float(layer.kernel[0, 0])) > 0.99
    True
    >>> layer(x).shape
    TensorShape([5000, 1])
    """

    components: int
    noise_multiplier: float
    l2_norm_clip: float | None = None
    whiten: bool = False
    trainable: bool = False

    def __post_init__(self) -> None:
        _check.integer_at_least(1, components=self.components)
        _check.finite_positive(noise_multiplier=self.noise_multiplier)
        if self.l2_norm_clip is not None:
            _check.finite_positive(l2_norm_clip=self.l2_norm_clip)
        _check.boolean(whiten=self.whiten, trainable=self.trainable)

    @override
    def events(self) -> tuple[SumQueryEvent, ...]:
        return (GaussianSum("preprocessing/pca", 1.0, self.noise_multiplier),)

    @override
    def check_schema(self, schema: ColumnSchema) -> None:
        check_numbers(schema)
        self._check_shape(schema.features)

    def bounded_sum(self, data: Any) -> Floats:
        """Returns the sum of all `x x^T`, without noise.

        This method alone bounds the records, so that the bound can be tested.
        """
        wholes = (
            rows.T @ rows
            for chunk in number_chunks(data)
            for rows in self._whole_rows(chunk)
        )
        return whole_total(wholes) / _UNITS**2

    @override
    def noised_layer(self, data: Any) -> keras.layers.Dense:
        exact = self.bounded_sum(data)
        noisy = noised(exact, self.noise_multiplier, symmetric)
        values, vectors = np.linalg.eigh(noisy)
        kernel = vectors[:, : -self.components - 1 : -1]
        if self.whiten:
            # The largest eigenvalue of the noise alone (Wigner 1958).
            least = self.noise_multiplier * math.sqrt(2 * len(noisy))
            values = np.maximum(values, least)[: -self.components - 1 : -1]
            kernel = kernel * np.sqrt(values[0] / values)
        layer = keras.layers.Dense(
            self.components, use_bias=False, trainable=self.trainable
        )
        layer.build((None, len(kernel)))
        layer.set_weights([kernel])
        return layer

    def _check_shape(self, shape: tuple[int | None, ...]) -> None:
        width = shape[-1] if shape else 0
        if width is not None and width < self.components:
            raise ValueError(
                "`data` must be records whose last axis has at least as many "
                f"entries as `components`. Received: records of shape "
                f"{shape}, components={self.components!r}. Flatten the "
                "records, or ask for fewer components."
            )

    def _whole_rows(self, chunk: Floats) -> Iterator[Floats]:
        """Yields the vectors of records of norm at most 1, in whole units."""
        *_, width = chunk.shape
        self._check_shape(chunk.shape[1:])
        chunk = chunk.reshape(len(chunk), math.prod(chunk.shape[1:]))
        for start in range(0, max(1, len(chunk)), _CHUNK_ROWS):
            rows = self._in_units(chunk[start : start + _CHUNK_ROWS])
            yield rows.reshape(-1, width)

    def _in_units(self, rows: Floats) -> Floats:
        finite = np.all(np.isfinite(rows), axis=1, keepdims=True)
        rows = np.where(finite, rows, 0.0)
        # Squares of what is divided by the largest do not overflow.
        largest = np.max(np.abs(rows), axis=1, keepdims=True)
        rows = rows / np.where(largest > 0, largest, 1.0)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / (np.where(norms > 0, norms, 1.0) * _ROUNDING)
        if self.l2_norm_clip is not None:
            with np.errstate(over="ignore"):
                rows *= np.minimum(1.0, largest / self.l2_norm_clip * norms)
        return np.trunc(rows * _UNITS)


def symmetric(draws: Floats) -> Floats:
    """Returns a symmetric matrix of noise for sums of bounded Frobenius norm.

    Entries off the diagonal have the standard deviation of the draws over
    sqrt(2).
    """
    upper = np.triu(draws)
    noise = np.asarray((upper + upper.T) / math.sqrt(2))
    np.fill_diagonal(noise, np.diagonal(upper))
    return noise
