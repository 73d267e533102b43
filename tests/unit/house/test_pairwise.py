"""The combinations of options that the tests of layers choose."""

import itertools

from tests.pairwise import pairwise

FACTORS = {"kind": "abcd", "mode": [[1], [2], [3]], "x": [0, 1], "y": [0, 1]}


def pairs_of(rows):
    return {
        repr(pair)
        for row in rows
        for pair in itertools.combinations(row.items(), 2)
    }


def product():
    return [
        dict(zip(FACTORS, values, strict=True))
        for values in itertools.product(*FACTORS.values())
    ]


def test_every_two_values_meet() -> None:
    assert pairs_of(pairwise(FACTORS)) == pairs_of(product())


def test_in_few_combinations() -> None:
    """The two options with the most values need 4 x 3; the product has 48."""
    assert 12 <= len(pairwise(FACTORS)) <= 14


def test_unless_they_are_not_allowed() -> None:
    def allowed(x, y, **others):
        return not (x and y)

    rows = pairwise(FACTORS, allowed)

    assert pairs_of(rows) == pairs_of(
        row for row in product() if allowed(**row)
    )
    assert not any(row["x"] and row["y"] for row in rows)
