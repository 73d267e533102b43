"""Ledgers as plain data, over the range that the accountants claim."""

import math

ADD = "add_or_remove_one"
REPLACE = "replace_one"
ZERO = "zero_out"


def poisson(q, z, count=1, sums=None):
    sampling = {"kind": "poisson", "probability": q}
    return _round(sampling, sums or [[1.0, z]], count)


def full(z, count=1, kind="full"):
    return _round({"kind": kind}, [[1.0, z]], count)


def epoch(name, stddev, count):
    return _round(
        {"kind": "disjoint", "epoch_id": name}, [[1.0, stddev]], count
    )


def _round(sampling, sums, count):
    return {"sampling": sampling, "sums": sums, "count": count}


def _groups():
    """Gradients of two layers, and a centred count of clipped ones."""
    return [[0.8, 1.2], [0.6, 1.1], [0.5, 4.0]]


CASES = [
    (
        "one round, hardly sampled, little noise",
        [poisson(1e-5, 0.3)],
        1e-7,
        ADD,
    ),
    ("one round", [poisson(0.01, 1.0)], 1e-5, ADD),
    ("one round, every other record", [poisson(0.5, 0.5)], 1e-10, ADD),
    ("one round, all records", [poisson(1.0, 1.0)], 1e-5, ADD),
    ("one round, much noise", [poisson(0.01, 30.0)], 1e-5, ADD),
    ("abadi", [poisson(0.01, 4.0, 10_000)], 1e-5, ADD),
    ("2 rounds", [poisson(0.01, 0.5, 2)], 1e-6, ADD),
    ("2 rounds, little noise", [poisson(1e-3, 0.3, 2)], 1e-10, ADD),
    ("3 rounds, little noise", [poisson(1e-3, 0.3, 3)], 1e-10, ADD),
    ("3 rounds, small delta", [poisson(0.3, 1.0, 3)], 1e-20, ADD),
    ("5 rounds, hardly sampled", [poisson(1e-5, 0.3, 5)], 1e-8, ADD),
    ("10 rounds", [poisson(0.05, 0.7, 10)], 1e-8, ADD),
    ("20 rounds, mostly sampled", [poisson(0.9, 5.0, 20)], 1e-5, ADD),
    ("20 rounds, hardly sampled", [poisson(1e-5, 0.3, 20)], 1e-8, ADD),
    ("100 rounds, little noise", [poisson(1e-3, 0.3, 100)], 1e-5, ADD),
    ("300 rounds", [poisson(0.01, 0.6, 300)], 1e-10, ADD),
    ("1000 rounds, little noise", [poisson(1e-4, 0.5, 1000)], 1e-7, ADD),
    ("2000 rounds", [poisson(1e-3, 1.0, 2000)], 1e-9, ADD),
    ("1000 rounds, hardly any noise", [poisson(0.1, 0.3, 1000)], 1e-5, ADD),
    *(
        (f"nasr {z}", [poisson(256 / 60_000, z, count)], 1e-5, ADD)
        for z, count in ((0.7, 12_000), (1.0, 8000), (1.1, 8000), (1.3, 8000))
    ),
    ("10^6 rounds", [poisson(1e-4, 0.6, 10**6)], 1e-8, ADD),
    ("10^6 rounds, hardly sampled", [poisson(1e-5, 1.0, 10**6)], 1e-10, ADD),
    ("10^6 rounds, 1e-9", [poisson(1e-5, 1.0, 10**6)], 1e-9, ADD),
    ("10^6 rounds of dust", [poisson(1e-5, 100.0, 10**6)], 1e-5, ADD),
    ("10^6 rounds, little noise", [poisson(1e-5, 0.3, 10**6)], 1e-10, ADD),
    ("10^5 rounds, much noise", [poisson(0.01, 100.0, 10**5)], 1e-5, ADD),
    ("10^5 rounds, 1e-6", [poisson(0.01, 100.0, 10**5)], 1e-6, ADD),
    ("delta 1e-15", [poisson(0.5, 20.0, 10_000)], 1e-15, ADD),
    ("delta 1e-30", [poisson(0.01, 1.0, 1000)], 1e-30, ADD),
    ("delta 1e-100", [poisson(1e-3, 0.8, 10_000)], 1e-100, ADD),
    ("10^4 rounds, hardly sampled", [poisson(1e-5, 0.3, 10**4)], 1e-7, ADD),
    ("3000 rounds, little noise", [poisson(1e-3, 0.4, 3000)], 1e-6, ADD),
    ("50 rounds, hardly sampled", [poisson(1e-4, 0.4, 50)], 1e-12, ADD),
    ("delta 1e-40", [poisson(0.01, 0.8, 300)], 1e-40, ADD),
    ("delta 1e-290", [poisson(0.01, 2.0, 5000)], 1e-290, ADD),
    ("delta 1e-100, all records", [full(10.0, 100)], 1e-100, ADD),
    (
        "3 kinds",
        [poisson(0.01, 1.1, 500), poisson(0.02, 0.9, 50), poisson(0.1, 3, 200)],
        1e-6,
        ADD,
    ),
    (
        "50 kinds",
        [poisson(0.01, 0.8 * math.exp(0.02 * k), 20 + k) for k in range(50)],
        1e-6,
        ADD,
    ),
    (
        "sampled and not",
        [poisson(0.01, 0.7, 1000), full(8.0, 3), full(20.0, 2)],
        1e-7,
        ADD,
    ),
    (
        "one strong round among much dust",
        [poisson(0.01, 0.5), poisson(1e-4, 5.0, 100_000)],
        1e-6,
        ADD,
    ),
    ("groups of one sample", [poisson(0.01, 0, 1000, _groups())], 1e-5, ADD),
    (
        "shuffled, zeroed out",
        [epoch("a", 2.0, 100), epoch("b", 2.0, 60), epoch("b", 1.5, 40)],
        1e-6,
        ZERO,
    ),
    (
        "shuffled, replaced",
        [epoch("a", 2.0, 100), epoch("b", 2.0, 60), epoch("b", 1.5, 40)],
        1e-6,
        REPLACE,
    ),
    (
        "sampled, then shuffled",
        [poisson(0.02, 1.0, 500), epoch("a", 4.0, 50)],
        1e-6,
        ZERO,
    ),
    ("replaced, 2 rounds", [poisson(0.5, 0.8, 2)], 1e-5, REPLACE),
    ("replaced, 1000 rounds", [poisson(0.01, 2.0, 1000)], 1e-5, REPLACE),
    ("replaced, 50 rounds", [poisson(0.5, 5.0, 50)], 1e-8, REPLACE),
    (
        "replaced, sampled and not",
        [poisson(0.02, 1.5, 500), full(30.0, 10)],
        1e-6,
        REPLACE,
    ),
]
