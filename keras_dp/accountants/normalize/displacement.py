"""How far vectors of length 1 move the sum of some columns, at most.

The square of `|sum_t c_t (x) g_t|` is `sum_st A_st <g_s, g_t>`, with the
products A of the columns `c_t`. In one dimension the vectors are signs. In
several, a relaxation of these bounds them: with any numbers y,

    sum_st A_st <g_s, g_t>  <=  sum_t y_t + k max(0, largest eigenvalue of
                                                     A - diag(y)),

because the largest sum is that of vectors of length 1: it is convex in each.
Vectors that are turned towards the sum of the others, one after the other, find
the y of the least bound (Wang, Chang and Kolter 2017, arXiv:1706.00476). Their
signs, from which single ones are turned as long as this helps, are a record
that moves the sum so far.
"""

import math

import numpy as np

from keras_dp.accountants.arrays import Array

# Vectors for more columns would take seconds. Signs do not.
_MOST_VECTORS = 100
_SWEEPS = 100
_ULP = 2.0**-52


def largest_displacement(columns: Array) -> tuple[float, float]:
    """Returns what some signs reach, and what no vectors exceed.

    Args:
        columns: Shape `[rows, k]`.

    Returns:
        Two lengths, not rounded outwards but for the eigenvalue. They are close
        for most columns; the second is `inf` for more than a hundred.

    >>> columns = np.array([[1.0, -1.0], [0.0, 1.0]])
    >>> [round(each, 6) for each in largest_displacement(columns)]
    [2.236068, 2.236068]
    """
    gram = columns.T @ columns
    count = len(gram)
    signs = (-1.0) ** np.arange(count)
    starts: list[Array] = [np.ones(count), np.asarray(signs)]
    upper = math.inf
    if count <= _MOST_VECTORS:
        vectors, upper = _vectors(gram)
        starts += [np.where(each < 0, -1.0, 1.0) for each in vectors.T]
    lower = max(
        float(np.linalg.norm(columns.dot(_turned(gram, each))))
        for each in starts
    )
    return lower, upper


def _vectors(gram: Array) -> tuple[Array, float]:
    """Returns vectors that move the sum far, and a bound for all vectors."""
    count = len(gram)
    size = math.isqrt(2 * count) + 2
    # Any start does whose vectors differ in all their directions.
    number, direction = np.arange(1.0, count + 1), np.arange(2.0, size + 2)
    vectors = np.cos(np.outer(number**2, np.sqrt(direction)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    others = gram - np.diag(np.diagonal(gram))
    for _ in range(_SWEEPS):
        for t in range(count):
            towards = others[t] @ vectors
            length = float(np.linalg.norm(towards))
            if length:
                vectors[t] = towards / length
    y = ((gram @ vectors) * vectors).sum(axis=1)
    beyond = float(np.linalg.eigvalsh(gram - np.diag(y))[-1])
    error = 8 * count * _ULP * float(np.abs(gram).sum(axis=1).max())
    square = float(y.sum()) + count * (max(0.0, beyond) + error)
    return vectors, math.sqrt(square)


def _turned(gram: Array, signs: Array) -> Array:
    """Returns signs of which no single one is better turned."""
    signs = signs.copy()
    sums = gram @ signs
    while True:
        gains = np.diagonal(gram) - signs * sums
        best = int(np.argmax(gains))
        if gains[best] <= 1e-12 * gram[best, best]:
            return signs
        signs[best] *= -1
        sums += 2 * signs[best] * gram[best]
