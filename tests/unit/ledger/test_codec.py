"""Events as canonical text, and back."""

import fractions
import functools
import json
import math

import numpy as np
import pytest

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger import Account, CountedRound
from keras_dp.ledger.events import rounds
from keras_dp.ledger.events.noise_families import GaussianNoise
from keras_dp.ledger.rows.author import Author
from keras_dp.ledger.rows.codec import (
    canonical,
    round_from_text,
    text_from_round,
)
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.statements import (
    RunEnd,
    RunPlan,
    RunStart,
    Seal,
    statement_from_text,
    text_from_statement,
)

SAMPLINGS = [
    rounds.PoissonSampling(0.1, drawn_by_library=True),
    rounds.PoissonUserSampling(0.1, drawn_by_library=True),
    rounds.TruncatedPoissonSampling(0.1, 30, 100, drawn_by_library=True),
    rounds.FixedSizeWithoutReplacement(3, 10),
    rounds.DisjointBatches("epoch é ☃ \x00"),
    rounds.FullDataset(drawn_by_library=True),
    rounds.UnverifiedSampling(),
    rounds.SamplingByContents(),
]
QUERIES = [
    rounds.GaussianSum("gradients", 0.1, 5e-324),
    rounds.GaussianSum("bare", 1.7e308, 0.0),
    rounds.NonPrivateSum("loss"),
    rounds.ThresholdedSum("words", 1.0, 4.0, 10**12, 1e300),
]
AUTHOR = Author("ann", "host", "hash", 1, "2", "fit.py", "", ())
PLANNED = rounds.Round(rounds.FullDataset(), (QUERIES[0],))
STATEMENTS = [
    RunStart("night", "training", "", None, "other 1.0", AUTHOR),
    RunPlan((CountedRound(PLANNED, 3),)),
    RunEnd("stopped"),
    Seal("note"),
]
ACCOUNT = Account("a", (1, 2), '{"rule":"none"}')  # Of any terms.


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("seeded", [False, True])
def test_rounds_round_trip(
    sampling: rounds.SamplingEvent, seeded: bool
) -> None:
    stored = rounds.Round(sampling, tuple(QUERIES), seeded)

    text = text_from_round(stored)

    assert round_from_text(text) == stored
    assert text_from_round(round_from_text(text)) == text


@pytest.mark.parametrize(
    "statement", [*STATEMENTS, ACCOUNT], ids=lambda each: each.kind
)
def test_statements_round_trip(statement) -> None:
    text = text_from_statement(statement)

    assert statement_from_text(statement.kind, text) == statement
    assert canonical(json.loads(text)) == text


def test_minus_zero_is_stored_as_zero() -> None:
    event = rounds.GaussianSum("g", -0.0, -0.0)

    assert math.copysign(1, event.l2_norm_bound) == 1
    assert math.copysign(1, event.noise_stddev) == 1


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -1.0, np.float32("nan"), 10**400],
)
def test_bounds_that_are_no_finite_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="`l2_norm_bound` must"):
        rounds.GaussianSum("g", value, 1.0)


@pytest.mark.parametrize(
    "value", [math.nan, 0.0, 1.1, fractions.Fraction(1, 10**400)]
)
def test_probabilities_outside_the_unit_interval_are_refused(
    value: float,
) -> None:
    """Also what is only as a float outside of it: it could not be read."""
    with pytest.raises(ValueError, match="`probability` must"):
        rounds.PoissonSampling(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(more=1),
        lambda content: content.pop("seeded"),
        lambda content: content.update(seeded=1),
        lambda content: content.update(queries=[]),
        lambda content: content.update(queries=3),
        lambda content: content.update(queries=[content["sampling"]]),
        lambda content: content.update(queries=content["queries"] * 2),
        lambda content: content.update(sampling=content["queries"][0]),
        lambda content: content["sampling"].update(kind="psn"),
        lambda content: content["sampling"].update(kind=["poisson"]),
        lambda content: content["sampling"].pop("kind"),
        lambda content: content["sampling"].update(more=1),
        lambda content: content["sampling"].pop("probability"),
        lambda content: content["sampling"].update(probability="0.1"),
        lambda content: content["sampling"].update(probability=0),
        lambda content: content["sampling"].update(probability=True),
        lambda content: content["queries"][0].update(l2_norm_bound=10**400),
        lambda content: content["queries"][0].update(noise_stddev=math.nan),
    ],
)
def test_what_no_event_can_be_is_refused(change) -> None:
    content = json.loads(
        text_from_round(
            rounds.Round(rounds.PoissonSampling(0.1), (QUERIES[0],))
        )
    )
    change(content)

    with pytest.raises(LedgerFormatError):
        round_from_text(json.dumps(content))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (round_from_text, text_from_round(PLANNED)),
        (Header.from_text, Header("clinic").as_text()),
        *(
            (
                functools.partial(statement_from_text, each.kind),
                text_from_statement(each),
            )
            for each in STATEMENTS
        ),
    ],
    ids=["round", "header", *(each.kind for each in STATEMENTS)],
)
def test_a_field_that_this_version_does_not_know_is_named(read, text) -> None:
    content = json.loads(text)

    for inside in (content, *content.values()):
        if isinstance(inside, dict) and inside:
            inside["metadata"] = 1
            with pytest.raises(LedgerFormatError, match=r"'metadata'.*know"):
                read(canonical(content))
            del inside["metadata"]

    assert read(text)


def test_a_field_that_is_given_twice_is_refused() -> None:
    """Read as the last of them, a ledger could show one bound and mean none."""
    text = text_from_round(
        rounds.Round(rounds.PoissonSampling(0.1), (QUERIES[0],))
    )
    twice = text.replace('"name"', '"l2_norm_bound":0,"name"')

    assert twice != text
    with pytest.raises(LedgerFormatError, match="once"):
        round_from_text(twice)


def test_a_scale_beyond_all_floats_is_refused() -> None:
    bounds = rounds.CoordinateBounds.from_arrays([[1.0]], [1])
    event = rounds.EncodedSum("e", bounds, GaussianNoise(2.0))
    text = text_from_round(rounds.Round(rounds.FullDataset(), (event,)))
    huge = text.replace('"scale":2.0', f'"scale":{10**400}')

    assert huge != text
    with pytest.raises(LedgerFormatError):
        round_from_text(huge)


def test_events_of_an_unknown_class_are_not_stored() -> None:
    class Mine(rounds.FullDataset):
        pass

    with pytest.raises(TypeError, match="of a class"):
        text_from_round(rounds.Round(Mine(), (QUERIES[0],)))
