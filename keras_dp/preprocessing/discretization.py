"""Quantiles of a feature, for `keras.layers.Discretization`."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.signal import fftconvolve

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger import GaussianSum, SumQueryEvent
from keras_dp.preprocessing.columns import (
    ColumnSchema,
    Floats,
    check_numbers,
    checked_range,
    number_chunks,
)
from keras_dp.preprocessing.release import Adapter, noised

_MOST_CELLS = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Discretization(Adapter):
    """Adapts a `keras.layers.Discretization` to noised quantiles.

    As in Keras, all values of a record belong to one feature. A public grid
    divides the range into cells. The release has, for every edge of the grid,
    the noised weight of the values below it. These numbers are then made
    nondecreasing. A boundary is where they pass `k / num_bins` of the last.

    Guarantee: a record with m values adds 1/m to the cell of each value, at
    most 1 in total. Values outside of the range count at its ends. NaN is not
    counted. Let h be the weights of the cells, and R the lower triangular
    matrix whose diagonals hold the coefficients r of `(1 - x)^(-1/2)`. A record
    moves `R h` by at most the norm of r. The release is `R h / |r|` with noise
    of `noise_multiplier` on every entry, so that the event has bound 1. `R R`
    sums up cells: `R` times `R h` is the weight below every edge. The standard
    deviation of its noise is at most `noise_multiplier |r|^2`, where `|r|^2` is
    3.7 for 4096 cells. Independent noise on every cell would sum up to 64 times
    `noise_multiplier`.

    Attributes:
        bounds: The range (low, high), in the unit of the data. Do not choose it
            by looking at the data.
        num_bins: The number of bins, >= 2. There is one boundary less.
        noise_multiplier: The standard deviation of the noise, divided by the
            bound on one record, > 0.
        cells: The number of cells of equal width, in [2, 2^20]. Values in one
            cell are not distinguished. The noise grows with the logarithm of
            this number.
        output_mode: As in the Keras layer.
        sparse: As in the Keras layer.

    Source: Fichtenberger, Henzinger and Upadhyay (2022), arXiv:2202.11205,
    section 3, for the matrix.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> ages = np.random.default_rng(1).uniform(20, 60, 100_000)
    >>> ledger = PrivacyLedger.in_memory(dataset="people")
    >>> layer = Discretization((0, 100), 4, noise_multiplier=10.0).adapt(
    ...     ages, ledger)
    >>> [round(each) for each in layer.bin_boundaries]
    [30, 40, 50]
    """

    bounds: tuple[float, float]
    num_bins: int
    noise_multiplier: float
    cells: int = 4096
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        bounds = checked_range(self.bounds, most_axes=0)
        object.__setattr__(self, "bounds", bounds)
        _check.integer_at_least(2, num_bins=self.num_bins, cells=self.cells)
        if self.cells > _MOST_CELLS:
            raise ValueError(
                f"`cells` must be <= {_MOST_CELLS}. "
                f"Received: cells={self.cells!r}. Use fewer cells."
            )
        _check.finite_positive(noise_multiplier=self.noise_multiplier)
        _check.one_of(
            ("int", "one_hot", "multi_hot", "count"),
            output_mode=self.output_mode,
        )
        _check.boolean(sparse=self.sparse)

    @override
    def events(self) -> tuple[SumQueryEvent, ...]:
        name = "preprocessing/discretization"
        return (GaussianSum(name, 1.0, self.noise_multiplier),)

    @override
    def check_schema(self, schema: ColumnSchema) -> None:
        check_numbers(schema)

    def bounded_sum(self, data: Any) -> Floats:
        """Returns the weights of the cells, without noise, shape `[cells]`.

        This method alone bounds the records, so that the bound can be tested.
        """
        total = np.zeros(self.cells, np.int64)
        values = 1
        for chunk in number_chunks(data):
            values = max(1, math.prod(chunk.shape[1:]))
            total += self._counts(chunk.ravel())
        return total / values

    @override
    def noised_layer(self, data: Any) -> keras.layers.Discretization:
        below = below_edges(self.bounded_sum(data), self.noise_multiplier)
        increasing = np.maximum(isotonic_regression(below).x, 0.0)
        return keras.layers.Discretization(
            bin_boundaries=self._boundaries(increasing),
            output_mode=self.output_mode,
            sparse=self.sparse,
        )

    def _counts(self, values: Floats) -> npt.NDArray[np.int64]:
        low, high = self.bounds
        values = np.clip(values[~np.isnan(values)], low, high)
        places = ((values - low) / (high - low) * self.cells).astype(np.int64)
        return np.bincount(
            np.minimum(places, self.cells - 1), minlength=self.cells
        )

    def _boundaries(self, below: Floats) -> list[float]:
        """Returns where nondecreasing weights pass equal shares of the last."""
        low, high = self.bounds
        shares = np.arange(1, self.num_bins) / self.num_bins
        if below[-1] > 0:
            targets = shares * below[-1]
            last = np.searchsorted(below, targets)
            before = np.where(last > 0, below[last - 1], 0.0)
            within = (targets - before) / (below[last] - before)
            shares = (last + within) / self.cells
        boundaries: list[float] = (low + shares * (high - low)).tolist()
        return boundaries


def below_edges(weights: Floats, noise_multiplier: float) -> Floats:
    """Returns the noised weight of the values below each upper edge."""
    root = root_of_sums(len(weights))
    return noised(
        np.cumsum(weights, dtype=np.float64),
        noise_multiplier * float(np.linalg.norm(root)),
        lambda draws: np.asarray(fftconvolve(root, draws)[: len(weights)]),
    )


def root_of_sums(size: int) -> Floats:
    """Returns the first column of the matrix whose square sums up entries.

    Its entries are the coefficients of `(1 - x)^(-1/2)`.
    """
    steps = np.arange(1, size)
    return np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
