"""Selections: laws of the number of trials, plans, and their canonical text."""

import itertools
import math
from typing import Any

import pytest

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.ledger.rows import codec

LAWS: list[TruncatedNegativeBinomial] = [
    TruncatedNegativeBinomial(-0.5, 3.0),
    TruncatedNegativeBinomial(0, 20),
    TruncatedNegativeBinomial(1e-9, 20),
    TruncatedNegativeBinomial(1, 20),
    TruncatedNegativeBinomial(3, 1.5),
    TruncatedNegativeBinomial(1e6, 20),
]
STEP = Round(PoissonSampling(0.1, True), (GaussianSum("g", 1.0, 2.0),))
SCORE = Round(FullDataset(True), (GaussianSum("score", 1.0, 9.0),))
SEARCH = Selection([[(STEP, 10), (SCORE, 1)], [(STEP, 5)]], LAWS[3])


@pytest.mark.parametrize("law", LAWS, ids=repr)
class TestLaws:
    """What every law promises, from the definition of its masses."""

    def test_the_masses_are_a_law_with_the_mean(self, law) -> None:
        masses = list(itertools.islice(law.masses(), 3000))
        mean = math.fsum(k * mass for k, mass in enumerate(masses))

        # Sums of 3000 floats; the rest of these laws is below 1e-10.
        assert math.fsum(masses) == pytest.approx(1, rel=1e-9)
        assert mean == pytest.approx(law.largest_mean, rel=1e-7)
        assert masses[0] == 0

    def test_uniform_numbers_give_the_law(self, law) -> None:
        masses = list(itertools.islice(law.masses(), 3000))
        below = 0.0
        for count, mass in enumerate(masses):
            # The ends of the numbers that stand for a count.
            if mass > 1e-9:
                assert law.trials(below + 1e-3 * mass) == count
                assert law.trials(below + 0.999 * mass) == count
            below += mass

    def test_the_largest_uniform_number_has_a_count(self, law) -> None:
        assert law.trials(math.nextafter(1.0, 0.0)) > law.largest_mean


@pytest.mark.parametrize(
    ("make", "arguments", "error"),
    [
        (TruncatedNegativeBinomial, (-1, 20), ValueError),
        (TruncatedNegativeBinomial, (math.nan, 20), ValueError),
        (TruncatedNegativeBinomial, (1, 1), ValueError),
        (TruncatedNegativeBinomial, (1, math.inf), ValueError),
        (TruncatedNegativeBinomial, (-0.999, 1e6), ValueError),
        (TruncatedNegativeBinomial, ("1", 20), TypeError),
        (Selection, ([], LAWS[0]), ValueError),
        (Selection, ([[]], LAWS[0]), ValueError),
        (Selection, ([[(STEP, 0)]], LAWS[0]), ValueError),
        (Selection, ([(STEP, 1)], LAWS[0]), TypeError),
        (Selection, ([[STEP]], LAWS[0]), TypeError),
        (Selection, ([[(STEP, 1)]], 20), TypeError),
        (Selection, ([[(STEP, 1)]], LAWS[0], ""), ValueError),
    ],
)
def test_bad_arguments_are_refused(
    make: Any, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="Received"):
        make(*arguments)


@pytest.mark.parametrize("uniform", [-0.1, 1.0, math.nan])
def test_numbers_that_are_not_uniform_are_refused(uniform: float) -> None:
    with pytest.raises(ValueError, match="uniform"):
        LAWS[0].trials(uniform)


def test_a_search_is_the_only_query_of_a_round_over_all_records() -> None:
    with pytest.raises(ValueError, match=r"Selection\.round"):
        Round(PoissonSampling(0.1), (SEARCH,))
    with pytest.raises(ValueError, match=r"Selection\.round"):
        Round(FullDataset(), (SEARCH, SCORE.queries[0]))


def test_the_round_of_a_search_says_what_its_trials_say() -> None:
    declared = Round(PoissonSampling(0.1), STEP.queries, seeded=True)
    bare = Round(FullDataset(), (NonPrivateSum("loss"),))
    search = Selection([[(declared, 1)], [(bare, 1)]], LAWS[0])

    assert SEARCH.round == Round(FullDataset(True), (SEARCH,))
    assert search.round == Round(FullDataset(False), (search,), seeded=True)
    assert SEARCH.is_private
    assert not search.is_private
    with pytest.raises(ValueError, match="seeded"):
        Round(FullDataset(), (search,))


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_searches_round_trip(law) -> None:
    inner = Selection([[(STEP, 2)]], LAWS[-1], "inner")
    stored = Selection([[(STEP, 10), (inner.round, 3)]], law).round

    text = codec.text_from_round(stored)

    assert codec.round_from_text(text) == stored
    assert codec.text_from_round(codec.round_from_text(text)) == text


@pytest.mark.parametrize(
    "kind", ["selection", "truncated_negative_binomial", "gaussian_sum"]
)
def test_a_reader_that_does_not_know_a_kind_refuses_the_row(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = codec.text_from_round(SEARCH.round)
    codec.round_from_text.cache_clear()
    monkeypatch.delitem(codec._KINDS, kind)

    with pytest.raises(LedgerFormatError, match="newer version"):
        codec.round_from_text(text)
