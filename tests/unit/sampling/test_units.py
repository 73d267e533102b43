"""No unit keeps more rows than its cap."""

import numpy as np
import pytest

from keras_dp.sampling.users import capped_rows

IDS = np.array(["a", "b", "a", "c", "a", "b", "a"])


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 9])
def test_keeps_as_many_as_it_may(cap) -> None:
    rows = capped_rows(IDS, cap)

    assert list(rows) == sorted(set(rows))
    for unit in "abc":
        kept = np.count_nonzero(IDS[rows] == unit)
        assert kept == min(cap, np.count_nonzero(unit == IDS))


def test_chooses_each_row_equally_often() -> None:
    """4,000 draws of one row of four: 5 stddevs of 27 rows."""
    counts = np.zeros(7)
    for _ in range(4000):
        counts[capped_rows(IDS, 1)] += 1

    for row in (0, 2, 4, 6):
        assert abs(counts[row] - 1000) < 137
    assert counts[3] == 4000


@pytest.mark.parametrize("ids", [[], [[1, 2]], 3], ids=str)
def test_refuses_ids_without_one_axis(ids) -> None:
    with pytest.raises(ValueError, match="`unit_ids` must be"):
        capped_rows(ids, 1)


def test_refuses_a_cap_of_none() -> None:
    with pytest.raises(ValueError, match="`rows_per_unit` must be"):
        capped_rows(IDS, 0)


@pytest.mark.parametrize(
    "ids",
    [
        ["ann", ""],
        np.array([b"ann", b""]),
        np.array(["ann", ""], object),
        np.array(["ann", None], object),
        [1.0, np.nan],
    ],
    ids=repr,
)
def test_refuses_records_without_a_name(ids) -> None:
    with pytest.raises(ValueError, match="one for every record"):
        capped_rows(ids, 1)


@pytest.mark.parametrize(
    "ids",
    [[7, 0], ["7", "0"], [b"7", b"0"]],
    ids=repr,
)
def test_takes_numbers_and_text(ids) -> None:
    assert list(capped_rows(ids, 1)) == [0, 1]
