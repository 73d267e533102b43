"""Says in sentences what the epsilon of a ledger means for one person."""

import math
from collections.abc import Iterable, Iterator

from keras_dp import _check
from keras_dp.accountants.claim import Claim, rounded_up, units_in_words
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay, replay_of
from keras_dp.accountants.trade_off_curves import (
    TradeOff,
    bayes_risk,
    precision_at_recall,
    trade_off,
)
from keras_dp.budgets import Guarantee, budget_of, guarantee
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.cautions import (
    INFERENCE,
    OTHER_RELEASES,
    taken_on_trust,
)
from keras_dp.reporting.chart import trade_off_pictures
from keras_dp.reporting.document import Document, Picture, Text, json_claim
from keras_dp.reporting.wording import counted, percent

_GROUPS = (2, 5, 10)
# Lines of the trade-off curve. A line of a large group takes up to a second.
_LINES, _LINES_OF_GROUPS = 100, 30
# Where few kinds of rounds stand for very many.
_FEW_LINES = 10
# The deltas at which accounts say their promise; a plan is replayed at each.
_PROMISED_AT = tuple(10.0**power for power in range(-12, 0))
# Suspicions before the attack, and the share of cases in which a true one may
# grow further than is said.
_PRIORS, _EXCEPT = (0.5, 0.01), 0.01
# The false positive rate of an attack that accuses many.
_FALSE_ALARMS = 0.001
# The chance of a hit without the releases: of all data, and of one attribute.
_HITS, _GUESSES = (1e-6, 1e-3), (0.5, 0.9)
# The question of an attacker, by the relation in which two data sets differ.
_QUESTIONS = {
    "add_or_remove_one": (
        "whether the data of one {unit} are in the data set at all"
    ),
    "replace_one": (
        "whether the data of one {unit} are in the data set, or other data, "
        "whatever they are, in their place"
    ),
    "zero_out": (
        "whether the data of one {unit} counted, or counted as zero in every "
        "sum"
    ),
}


def explain(
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> Document:
    """Explains what the epsilon of a ledger means for one privacy unit.

    The answer has the claim as a line to publish, the bound on every attack as
    pictures, if there is one, and the meaning in sentences for people who do
    not know differential privacy.

    If the ledger has more than 1000 different mechanisms, about 64 with less
    noise stand for them, and the curve has fewer lines. The numbers are then
    larger, and still bounds.

    Guarantee: every number is an upper bound, rounded up, for all attacks on
    the releases of the ledger's rounds. The bounds hold under the theorem of
    the ledger's guarantee.

    Args:
        ledger: The ledger, with its runs, plans and accounts, or its replay.
        delta: The delta of the claim, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        units: The number of units that are protected together, >= 1.

    Raises:
        ValueError: An argument is out of its range.

    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> found = explain(ledger, delta=1e-5)
    >>> meaning = found.facts["explanation"]
    >>> print(meaning["What the attacker can find out at most"][0])
    An attacker who guesses without the releases is right 50 % of the time; ...
    """
    _check.integer_at_least(1, units=units)
    replay = replay_of(ledger)
    found = guarantee(replay, delta=delta, neighbours=neighbours, units=units)
    meaning = meaning_of(replay, found)
    sentence = found.claim.sentence(replay.header.unit)
    return Document(
        "What epsilon means",
        (Text("", (sentence,), "claim"), *meaning),
        {
            **json_claim(found.claim),
            "sentence": sentence,
            "explanation": sentences_of(meaning),
        },
    )


def sentences_of(parts: Iterable[Picture | Text]) -> dict[str, list[str]]:
    """Returns the sentences of texts by their titles."""
    return {
        each.title: [*each.sentences]
        for each in parts
        if isinstance(each, Text)
    }


def meaning_of(replay: Replay, found: Guarantee) -> tuple[Picture | Text, ...]:
    """Returns what a guarantee of a ledger means, in pictures and sentences."""
    claim = found.claim
    paragraphs: list[Picture | Text] = [_no_bound(found)]
    if math.isfinite(claim.epsilon):
        curve = bound_on_attacks(replay, found)
        membership = tuple(_membership(curve))
        paragraphs = [
            Picture(
                "What an attacker can know",
                trade_off_pictures(curve, " ".join(membership)),
            ),
            _attacker(replay, claim),
            Text("What the attacker can find out at most", membership),
            Text(
                "What the attacker can reconstruct at most",
                tuple(
                    _reconstruction(curve, _units_asked_about(replay, claim))
                ),
            ),
        ]
        if found.basis != "account":
            paragraphs.append(_groups(found))
    # The cost of a plan is the guarantee, and an attacker knows the plan.
    limits = taken_on_trust(replay, found.covers.rounds)
    return (
        *paragraphs,
        Text("What this does not say", (INFERENCE, OTHER_RELEASES, *limits)),
    )


def plain_words(replay: Replay, found: Guarantee) -> str:
    """Returns a guarantee in a sentence for people who know no epsilon.

    Guarantee: no bet on which of two neighbouring data sets was used wins more
    often, if both are as likely. For mechanisms the bound follows from their
    trade-off curve, for accounts from their promises at all deltas.
    """
    claim = found.claim
    unit = _units_asked_about(replay, claim)
    if not math.isfinite(claim.epsilon):
        return (
            f"Nothing limits what may be learned about one {unit} from what "
            "was released."
        )
    asked = _QUESTIONS[str(claim.neighbours)].format(unit=unit)
    return (
        f"With all that was released, a bet on {asked} is won at most "
        f"{percent(_wins(replay, found))} of the time. By chance it is won "
        "50 % of the time."
    )


def _wins(replay: Replay, found: Guarantee) -> float:
    """Returns how often a bet at even odds is won at most."""
    claim = found.claim
    if found.basis == "account":
        return 0.5 + 0.5 * _promised(replay, claim.delta).advantage
    # This bound on a bet at even odds needs epsilon and delta alone.
    wins = 1 - (1 - claim.delta) / (1 + math.exp(min(claim.epsilon, 700.0)))
    rounds = found.covers.for_many_questions(claim.neighbours)
    return min(wins, 1 - bayes_risk(rounds, prior=0.5, units=claim.units))


def bound_on_attacks(replay: Replay, found: Guarantee) -> TradeOff:
    """Returns the bound on every attack that a guarantee gives."""
    claim = found.claim
    if found.basis == "account":
        return _promised(replay, claim.delta)
    rounds = found.covers.for_many_questions(claim.neighbours)
    lines = _LINES if claim.records == 1 else _LINES_OF_GROUPS
    if rounds is not found.covers.normalized(claim.neighbours):
        lines = _FEW_LINES
    return trade_off(rounds, lines=lines, units=claim.units)


def _groups(found: Guarantee) -> Text:
    claim = found.claim
    sentences = []
    for size in _GROUPS:
        units = size * claim.units
        epsilon = found.covers.bound(
            delta=claim.delta, neighbours=claim.neighbours, units=units
        )
        what = f"{units:,} units together"
        sentences.append(
            f"{what}: epsilon <= {rounded_up(epsilon)} at the same delta."
            if math.isfinite(epsilon)
            else f"{what}: no protection at this delta."
        )
    return Text(
        "What holds for several together, such as a family", tuple(sentences)
    )


def _promised(replay: Replay, delta: float) -> TradeOff:
    """Returns the bound on attacks that the promises of all accounts give."""
    whole = [budget_of(each.account) for each in replay.accounts]
    # Epsilon rises as delta falls. It is infinite if nothing is promised.
    lines = {0.0: 1.0}
    for each in sorted({delta, *_PROMISED_AT}, reverse=True):
        epsilon = sum(budget.promise(each / len(whole)) for budget in whole)
        if math.isfinite(epsilon):
            lines[max(0.0, epsilon)] = each
    pairs = sorted(lines.items())
    return TradeOff(*zip(*pairs, strict=True))


def _units_asked_about(replay: Replay, claim: Claim) -> str:
    return units_in_words(replay.header.unit, claim.units)


def _attacker(replay: Replay, claim: Claim) -> Text:
    unit = _units_asked_about(replay, claim)
    asked = _QUESTIONS[str(claim.neighbours)].format(unit=unit)
    if claim.records > 1:
        asked += f" (at most {claim.records:,} records together)"
    total = sum(count for _, count in replay.rounds)
    return Text(
        "Against whom",
        (
            "The attacker knows every other record of the data set "
            f"{replay.header.dataset}, the program and all its settings, sees "
            f"everything that the {counted(total, 'round')} of this ledger "
            "released, and has any computer, any amount of time and any other "
            "data.",
            f"The attacker wants to know {asked}.",
        ),
    )


def _no_bound(found: Guarantee) -> Text:
    """Returns why there is no bound on attacks."""
    reason = (
        "epsilon is infinite at this delta, because something was released "
        "without enough noise, or because thresholds or truncated samples need "
        "a larger delta"
    )
    if found.basis == "account":
        reason = "the accounts promise no finite epsilon at this delta"
    elif found.claim.accountant is None:
        reason = "no accountant has a bound for all rounds"
    return Text(
        "What an attacker can find out",
        (f"Everything, as far as this ledger can tell: {reason}.",),
    )


def _membership(curve: TradeOff) -> Iterator[str]:
    """Yields how well an attack can know which data set was used."""
    yield (
        "An attacker who guesses without the releases is right 50 % of the "
        f"time; with them, at most {percent(0.5 + 0.5 * curve.advantage)}."
    )
    cases = round(1 / _EXCEPT)
    ends = ", and one of ".join(
        f"{percent(prior)} to "
        f"{percent(precision_at_recall(curve, prior=prior, recall=_EXCEPT))}"
        for prior in _PRIORS
    )
    yield (
        f"In {cases - 1} of {cases} cases, a true suspicion grows at most "
        f"like this: one of {ends}."
    )
    hits = float(curve.largest_true_positive_rate(_FALSE_ALARMS))
    yield (
        "An attacker who asks about many, and wrongly accuses 1 in "
        f"{round(1 / _FALSE_ALARMS):,} of those for whom the answer is no, "
        f"finds at most {percent(hits)} of those for whom it is yes; by "
        f"guessing, {percent(_FALSE_ALARMS)}."
    )


def _reconstruction(curve: TradeOff, unit: str) -> Iterator[str]:
    """Yields how often an attack can reproduce data, or one attribute."""

    def reached(prior: float) -> str:
        return percent(float(curve.largest_reconstruction_rate(prior)))

    (seldom, often), (even, likely) = _HITS, _GUESSES
    yield (
        f"An attacker may try to reproduce the data of one {unit}, whatever "
        f"counts as close enough. If that succeeds 1 time in "
        f"{round(1 / seldom):,} without the releases, it succeeds at most "
        f"{reached(seldom)} of the time with them; if 1 time in "
        f"{round(1 / often):,}, at most {reached(often)}."
    )
    # Up to a tenth; an excess by rounding alone is not rounded up.
    more = math.ceil(1000 * curve.advantage - 1e-9) / 10
    yield (
        f"An attacker may know all but one attribute of one {unit}. If its "
        f"likeliest value is right {percent(even)} of the time, a guess with "
        f"the releases is right at most {reached(even)}; if {percent(likely)}, "
        f"at most {reached(likely)}. For any attribute, the releases add at "
        f"most {more:g} percentage points."
    )
