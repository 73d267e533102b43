"""Says in sentences what the epsilon of a ledger means for one person."""

import dataclasses
import math
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.attacks.trade_off import (
    TradeOff,
    bayes_risk,
    trade_off,
)
from keras_dp.accountants.claim import Claim, rounded_up, together
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.replay import (
    Replay,
    bounded_epsilon,
    replay_of,
)
from keras_dp.budgets import budget_of, guarantee
from keras_dp.ledger import CountedRound, PrivacyLedger
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.reporting.attack_words import (
    attribute_sentence,
    membership_sentences,
    reconstruction_sentence,
)
from keras_dp.reporting.limits import INFERENCE, OTHER_RELEASES
from keras_dp.reporting.wording import (
    counted,
    declared_of_units,
    declared_rounds,
    of_searches,
    on_one_line,
    percent,
    rounds_elsewhere,
    with_a_chosen_seed,
    wrapped,
)

_GROUPS = (2, 5, 10)
# Lines of the trade-off curve. A line of a large group takes up to a second.
_LINES, _LINES_OF_GROUPS = 100, 30
# Where few kinds of rounds stand for very many.
_FEW_LINES = 10
# The deltas at which accounts say their promise; a plan is replayed at each.
_PROMISED_AT = tuple(10.0**power for power in range(-12, 0))
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


class Paragraph(NamedTuple):
    """Sentences under a title.

    Attributes:
        title: A question or a topic.
        sentences: Sentences, each of which can be read alone.
    """

    title: str
    sentences: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of the epsilon of a ledger, in sentences.

    Attributes:
        sentence: The claim as a line to publish.
        claim: The claim, with what it depends on.
        curve: The bound on every attack; `None` without a bound.
        paragraphs: The meaning, for people who do not know differential
            privacy.
    """

    sentence: str
    claim: Claim
    curve: TradeOff | None
    paragraphs: tuple[Paragraph, ...]

    def as_text(self) -> str:
        """Returns the sentences as lines that fit a terminal."""
        lines = wrapped(self.sentence)
        for title, sentences in self.paragraphs:
            lines += ["", title]
            for sentence in sentences:
                lines += wrapped(sentence, "  - ")
        return "\n".join(lines)


def explain(
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> Explanation:
    """Explains what the epsilon of a ledger means for one privacy unit.

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
    >>> print(found.paragraphs[1].sentences[0])
    An attacker who guesses without the releases is right 50 % of the time; ...
    """
    _check.integer_at_least(1, units=units)
    replay = replay_of(ledger)
    found = guarantee(replay, delta=delta, neighbours=neighbours, units=units)
    claim, is_account = found.claim, found.basis == "account"
    subject = _Subject(replay, together(on_one_line(replay.header.unit), units))
    curve = None
    paragraphs = [_nothing(claim, is_account)]
    if claim.is_bound and math.isfinite(claim.epsilon):
        paragraphs = [subject.attacker(claim)]
        if is_account:
            curve = _promised(replay, delta)
        else:
            whole = _that_count(replay, neighbours)
            rounds = whole.for_many_questions()
            lines = _LINES if claim.records == 1 else _LINES_OF_GROUPS
            curve = trade_off(
                rounds,
                lines=lines if rounds is whole else _FEW_LINES,
                units=units,
            )
        paragraphs += [
            Paragraph(
                "What the attacker can find out at most",
                membership_sentences(curve),
            ),
            Paragraph(
                "What the attacker can reconstruct at most",
                (
                    reconstruction_sentence(curve, subject.asked),
                    attribute_sentence(curve, subject.asked),
                ),
            ),
        ]
        if not is_account:
            paragraphs.append(_groups(rounds, claim))
    # The cost of a plan is the guarantee, and an attacker knows the plan.
    limits = subject.limits(replay.that_count(neighbours).together.rounds)
    return Explanation(
        claim.sentence(on_one_line(replay.header.unit)),
        claim,
        curve,
        (*paragraphs, Paragraph("What this does not say", limits)),
    )


def _that_count(
    replay: Replay, neighbours: Neighbours | None
) -> NormalizedRounds:
    """Returns the rounds whose cost is a guarantee."""
    found = replay.that_count(neighbours)
    return found.together.normalized(found.neighbours)


def plain_words(
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> str:
    """Returns the guarantee in a sentence for people who know no epsilon.

    Guarantee: no bet on which of two neighbouring data sets was used wins more
    often, if both are as likely. For mechanisms the bound follows from their
    trade-off curve, for accounts from their promises at all deltas.

    Args:
        ledger: The ledger, with its runs, plans and accounts, or its replay.
        delta: The delta of the guarantee, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        units: The number of units that are protected together, >= 1.
    """
    replay = replay_of(ledger)
    found = guarantee(replay, delta=delta, neighbours=neighbours, units=units)
    claim = found.claim
    unit = together(on_one_line(replay.header.unit), units)
    if not claim.is_bound or not math.isfinite(claim.epsilon):
        return (
            f"Nothing limits what may be learned about one {unit} from what "
            "was released."
        )
    if found.basis == "account":
        wins = 0.5 + 0.5 * _promised(replay, delta).advantage
    else:
        # This bound on a bet at even odds needs epsilon and delta alone.
        wins = 1 - (1 - delta) / (1 + math.exp(min(claim.epsilon, 700.0)))
        risk = bayes_risk(
            _that_count(replay, neighbours).for_many_questions(),
            prior=0.5,
            units=units,
        )
        wins = min(wins, 1 - risk)
    asked = _QUESTIONS[str(claim.neighbours)].format(unit=unit)
    return (
        f"With all that was released, a bet on {asked} is won at most "
        f"{percent(wins)} of the time. By chance it is won 50 % of the time."
    )


def _promised(replay: Replay, delta: float) -> TradeOff:
    """Returns the bound on attacks that the promises of all accounts give."""
    whole = [
        budget_of(each.account)
        for each in replay.accounts
        if each.account.parent is None
    ]
    # Epsilon rises as delta falls. It is infinite if nothing is promised.
    lines = {0.0: 1.0}
    for each in sorted({delta, *_PROMISED_AT}, reverse=True):
        epsilon = sum(budget.promise(each / len(whole)) for budget in whole)
        if math.isfinite(epsilon):
            lines[max(0.0, epsilon)] = each
    pairs = sorted(lines.items())
    return TradeOff(*zip(*pairs, strict=True))


class _Subject(NamedTuple):
    """The ledger, and the units that are protected, in words."""

    replay: Replay
    asked: str

    def attacker(self, found: Claim) -> Paragraph:
        """Returns what the attacker knows and wants to know."""
        asked = _QUESTIONS[str(found.neighbours)].format(unit=self.asked)
        if found.records > 1:
            asked += f" (at most {found.records:,} records together)"
        dataset = on_one_line(self.replay.header.dataset)
        total = sum(count for _, count in self.replay.rounds)
        return Paragraph(
            "Against whom",
            (
                "The attacker knows every other record of the data set "
                f"{dataset}, the program and all its settings, sees everything "
                "that the "
                f"{counted(total, 'round')} of this ledger released, and "
                "has any computer, any amount of time and any other data.",
                f"The attacker wants to know {asked}.",
            ),
        )

    def limits(self, rounds: tuple[CountedRound, ...]) -> tuple[str, ...]:
        """Returns sentences on what the numbers do not cover."""
        header, declared = self.replay.header, declared_rounds(rounds)
        seeded = sum(count for each, count in rounds if each.seeded)
        sentences = [INFERENCE, OTHER_RELEASES]
        if header.unit not in UNITS_OF_ROWS:
            sentences.append(
                declared_of_units(
                    on_one_line(header.unit), header.rows_per_unit, rounds
                )
            )
        searched = of_searches(rounds)
        if searched:
            sentences.append(searched)
        if declared:
            sentences.append(
                f"It is taken on trust how the samples of "
                f"{counted(declared, 'round')} were drawn: no sampler of this "
                "library drew them."
            )
        sentences += rounds_elsewhere(self.replay.runs)
        if seeded:
            sentences.append(with_a_chosen_seed(seeded))
        return tuple(sentences)


def _groups(rounds: NormalizedRounds, found: Claim) -> Paragraph:
    """Returns how the guarantee weakens for several units together."""
    sentences = []
    for size in _GROUPS:
        units = size * found.units
        epsilon = bounded_epsilon(rounds, delta=found.delta, units=units)
        what = f"{units:,} units together"
        sentences.append(
            f"{what}: epsilon <= {rounded_up(epsilon)} at the same delta."
            if math.isfinite(epsilon)
            else f"{what}: no protection at this delta."
        )
    return Paragraph(
        "What holds for several together, such as a family",
        tuple(sentences),
    )


def _nothing(found: Claim, is_account: bool) -> Paragraph:
    """Returns why there is no bound on attacks."""
    reason = (
        "epsilon is infinite at this delta, because something was released "
        "without enough noise, or because thresholds or truncated samples need "
        "a larger delta"
    )
    if is_account:
        reason = "the accounts promise no finite epsilon at this delta"
    elif found.accountant is None:
        reason = "no accountant has a bound for all rounds"
    return Paragraph(
        "What an attacker can find out",
        (f"Everything, as far as this ledger can tell: {reason}.",),
    )
