"""The settings of a private training, each chosen by a step of its own.

A step is a function from what was asked and the settings so far to settings
with one more choice. `STEPS` has them in the order in which they follow from
each other.
"""

import dataclasses
import functools
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import keras

from keras_dp._override import override
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery
from keras_dp.ledger import AccountRecord, Strategy
from keras_dp.recipes.clip import clip_of
from keras_dp.recipes.correlation import Noise, correlation_of
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.noise_for_target import (
    RoundQueries,
    queries_for,
    signal_of,
)
from keras_dp.recipes.training_data import TrainingData
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget
from keras_dp.training import PrivateMetric

# The first column of the table, and the width of the whole.
_NAMES, _WIDTH = 15, 88


class Choice(NamedTuple):
    """One line of the table that `fit` prints.

    Attributes:
        name: The setting, such as "clip".
        value: The choice.
        reason: Why, and how to choose otherwise; may be empty.
    """

    name: str
    value: str
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The arguments of `make_private`, before anything is chosen.

    Attributes:
        model: The model of the user.
        given: The records.
        target: For all rounds of the ledger.
        loss: As in `compile`.
        epochs: As in `make_private`, like all that follow.
        l2_norm_clip: A number, "automatic" or `None`.
        noise: How noise is added.
        batch_statistics: A query, "auto" or `None`.
        private_metrics: As in `PrivateModel.compile`.
    """

    model: keras.Model
    given: TrainingData
    target: PrivacyTarget
    loss: Any
    epochs: int | None
    l2_norm_clip: Any
    noise: Noise
    batch_statistics: DPQuery | str | None
    private_metrics: Mapping[str, PrivateMetric] | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The choices for a private training, each with its reason.

    `make_private` chooses them, `fit` prints them once, and they are the
    attribute `settings` of the private model. Printed, they are a table with a
    line for each choice.

    Attributes:
        held: The rounds that the ledger held before.
        account: The account that pays, `None` without one.
        l2_norm_clip: The bound on the gradient of a record.
        gamma: See `GaussianSumQuery`; `None` for a clip.
        epochs: The number of epochs, the part of an interrupted run included.
        samples: Draws the samples.
        strategy: How noise is correlated over rounds, `None` if it is not.
        queries: The queries of each round.
        choices: A line for each choice.
    """

    held: HeldRounds
    account: AccountRecord | None = None
    l2_norm_clip: float = 1.0
    gamma: float | None = None
    epochs: int = 1
    samples: Sampler | None = None
    strategy: Strategy | None = None
    queries: RoundQueries | None = None
    choices: tuple[Choice, ...] = ()

    @property
    def rounds(self) -> int:
        """The number of rounds of all epochs."""
        return self.epochs * self.drawn.rounds_per_epoch

    @property
    def drawn(self) -> Sampler:
        """The samples, once they are chosen."""
        if self.samples is None:
            raise RuntimeError("The samples are not chosen yet.")
        return self.samples

    @property
    def found(self) -> RoundQueries:
        """The queries, once they are chosen."""
        if self.queries is None:
            raise RuntimeError("The queries are not chosen yet.")
        return self.queries

    @property
    def signal(self) -> float:
        """The longest sum of all averages over the deviation of its noise."""
        return signal_of(self.found.gradients, self.rounds)

    def with_choice(
        self, name: str, value: str, reason: str = "", **changes: Any
    ) -> Self:
        """Returns the settings with one more line, and with other values."""
        line = Choice(name, value, reason)
        return dataclasses.replace(
            self, choices=(*self.choices, line), **changes
        )

    @override
    def __str__(self) -> str:
        lines: list[str] = []
        for name, value, reason in self.choices:
            lines += textwrap.wrap(
                f"{value}: {reason}" if reason else value,
                _WIDTH,
                initial_indent=f"  {name:<{_NAMES}}",
                subsequent_indent=" " * (2 + _NAMES),
                break_on_hyphens=False,
                break_long_words=False,
            )
        return "\n".join(lines)

    __repr__ = __str__


Step = Callable[[Asked, Settings], Settings]


def resolved(
    asked: Asked, held: HeldRounds, account: AccountRecord | None
) -> Settings:
    """Returns the settings that meet a target beside what a ledger holds.

    Args:
        asked: The arguments of the user.
        held: The rounds that count.
        account: The account that pays, `None` without one.

    Raises:
        BudgetExceededError: The account does not pay for such rounds.
        CalibrationError: No noise meets the target, or it would hide all that
            is learned.
    """
    return functools.reduce(
        lambda settings, step: step(asked, settings),
        STEPS,
        Settings(held, account),
    )


def choose_clip(asked: Asked, settings: Settings) -> Settings:
    """Chooses the bound on a gradient by the loss."""
    clip, gamma = clip_of(asked.l2_norm_clip, asked.loss, asked.model)
    if gamma is not None:
        value, reason = "automatic", f"automatic clipping (gamma {gamma:g})"
    else:
        value, reason = f"{clip:g}", "" if asked.l2_norm_clip else "by the loss"
    return settings.with_choice(
        "clip", value, reason, l2_norm_clip=clip, gamma=gamma
    )


def choose_epochs(asked: Asked, settings: Settings) -> Settings:
    """Chooses the fewest epochs with most of the signal of many."""
    epochs, reason = asked.epochs, ""
    if epochs is None:
        epochs = asked.given.enough_epochs(asked.target, settings.held)
        reason = "more give little more signal; epochs= sets their number"
    return settings.with_choice("epochs", f"{epochs:,}", reason, epochs=epochs)


def choose_samples(asked: Asked, settings: Settings) -> Settings:
    """Chooses the size of samples, and their classes for correlated noise."""
    samples = asked.given.samples(asked.target, settings.epochs, settings.held)
    how = correlation_of(
        asked.noise,
        asked.given,
        samples,
        settings.epochs * samples.rounds_per_epoch,
        asked.target,
        settings.held,
    )
    samples = how.samples
    expected = samples.expected_sample_size
    value = f"{expected:,.6g} records expected"
    if samples.unit == "user":
        value = f"{expected:,.6g} users expected"
    elif samples.microbatches is not None:
        count = expected / samples.microbatches.size
        value += f", in {count:,.6g} microbatches"
    if samples.views > 1:
        value += f", each with {samples.views} views"
    is_chosen = asked.given.batch_size is None and samples is not (
        asked.given.records
    )
    settings = settings.with_choice(
        "samples",
        value,
        "the smallest with nearly the best signal" if is_chosen else "",
        samples=samples,
        strategy=how.strategy,
    )
    said = how.said(settings.rounds)
    return settings if said is None else settings.with_choice("bands", *said)


def choose_noise(asked: Asked, settings: Settings) -> Settings:
    """Chooses the least noise that meets the target."""
    queries = queries_for(
        asked.target,
        asked.model,
        settings.drawn,
        settings.epochs,
        settings.held,
        l2_norm_clip=settings.l2_norm_clip,
        gamma=settings.gamma,
        precision="proven" if asked.noise == "proven" else "assumed",
        strategy=settings.strategy,
        private_metrics=asked.private_metrics,
        batch_statistics=asked.batch_statistics,
        account=settings.account,
    )
    value = f"multiplier {queries.noise_multiplier:.6g}"
    if isinstance(queries.batch_statistics, GaussianAverageQuery):
        own = queries.batch_statistics.noise_multiplier
        value += f", of batch statistics {own:.4g}"
    return settings.with_choice(
        "noise", value, "the least that meets the target", queries=queries
    )


# Their order: the noise follows from all of the others.
STEPS: tuple[Step, ...] = (
    choose_clip,
    choose_epochs,
    choose_samples,
    choose_noise,
)
