"""A sum of each kind, rounds of them, and what no accountant takes."""

from keras_dp.ledger import (
    BandedToeplitz,
    CoordinateBounds,
    CorrelatedSum,
    EncodedSum,
    GaussianSum,
    NonPrivateSum,
    Round,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise

RELATIONS = ("add_or_remove_one", "replace_one", "zero_out")
BOUNDS = CoordinateBounds.from_arrays([[0.5, 0.25], [0.75, 0.0]], [1, 3])
OTHERS = CoordinateBounds.from_arrays([[0.125]], [9])

LAPLACE = EncodedSum("encoded", BOUNDS, LaplaceNoise(2.0))
STUDENT = EncodedSum("heavy", OTHERS, StudentTNoise(0.5, 5.0))
ROW = CorrelatedSum("row", 1.0, 8.0, BandedToeplitz((1.0, 0.5)), 16, "one")
GAUSSIAN = GaussianSum("sum", 1.0, 4.0)
BARE = NonPrivateSum("bare")


def over(sampling, *queries, count=1):
    return (Round(sampling, queries), count)
