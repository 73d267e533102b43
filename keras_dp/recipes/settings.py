"""The settings of a private training, and the line that is said of each."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import keras

from keras_dp._override import override
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery, NormalizedQuery
from keras_dp.ledger import AccountRecord, Round, Strategy
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.training_data import TrainingData
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget, RunDetails

# `make_private` takes it as its noise.
Noise: TypeAlias = Literal["independent", "proven", "correlated"] | Strategy

# The first column of the table, and the width of the whole.
_NAMES, _WIDTH = 15, 88
# A setting of which no step has said anything yet.
_LATER: Any = None


class SettingLine(NamedTuple):
    """One line of the table that `fit` prints.

    Attributes:
        name: The setting, such as "clip".
        value: The choice.
        reason: Why, and how to choose otherwise; may be empty. It is a function
            if it takes long to find: then it is asked for when it is printed.
    """

    name: str
    value: str
    reason: str | Callable[[], str] = ""

    @override
    def __str__(self) -> str:
        reason = self.reason() if callable(self.reason) else self.reason
        return f"{self.value}: {reason}" if reason else self.value


class RoundQueries(NamedTuple):
    """The queries of every round.

    Attributes:
        gradients: The average of the gradients; for correlated noise, with the
            independent noise that leaves as much noise in the sums over rounds.
        released: The query for the optimizer: `gradients`, or the same with
            correlated noise.
        batch_statistics: For `compile`, `None` if none are released.
        round: The round as the ledger will hold it. Of a sampler that makes
            passes over the data, it is the first round.
    """

    gradients: GaussianAverageQuery
    released: DPQuery
    batch_statistics: DPQuery | None
    round: Round

    @property
    def noise_multiplier(self) -> float:
        """The noise of what is released, over the bound on a record."""
        released: Any = self.released
        if isinstance(released, NormalizedQuery):
            released = released.numerator_query
        return float(released.noise_multiplier)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The settings of a private training, each chosen with its reason.

    `make_private` begins with its arguments, and each of its steps chooses
    those that were not given. `fit` prints the settings once, and they are the
    attribute `settings` of the private model. Printed, they are a table with a
    line for each choice.

    Attributes:
        model: The model of the user.
        compiled: The arguments of `compile`.
        run: How the ledger describes the training.
        data: The records.
        held: The target, and the rounds that the ledger held before.
        account: The account that pays, `None` without one.
        epochs: The number of epochs, the part of an interrupted run included.
        batch_size: As given to `make_private`.
        samples: Draws the samples.
        l2_norm_clip: The bound on the gradient of a record.
        gamma: See `GaussianSumQuery`; `None` for a clip.
        noise: "independent" or "proven", or how it is correlated over rounds.
        batch_statistics: As given to `make_private`.
        queries: The queries of each round.
        optimizer: Applies the answers, without privacy of its own.
        learning_rate: As given to `make_private`.
        average: As given to `make_private`.
        choices: A line for each choice.
    """

    model: keras.Model
    compiled: Mapping[str, Any]
    run: RunDetails = dataclasses.field(default_factory=RunDetails)
    data: TrainingData = _LATER
    held: HeldRounds = _LATER
    account: AccountRecord | None = None
    epochs: Any = None
    batch_size: int | None = None
    samples: Sampler = _LATER
    l2_norm_clip: Any = None
    gamma: float | None = None
    noise: Noise = "independent"
    batch_statistics: DPQuery | Literal["auto"] | None = None
    queries: RoundQueries = _LATER
    optimizer: Any = None
    learning_rate: Any = None
    average: str | None = None
    choices: tuple[SettingLine, ...] = ()

    @property
    def target(self) -> PrivacyTarget | None:
        """Holds for all rounds of the ledger; `None` for no limit."""
        return None if self.held is None else self.held.target

    @property
    def rounds(self) -> int:
        """The number of rounds of all epochs."""
        return int(self.epochs * self.samples.rounds_per_epoch)

    @property
    def strategy(self) -> Strategy | None:
        """How noise is correlated over rounds, `None` if it is not."""
        return self.noise if isinstance(self.noise, Strategy) else None

    @property
    def signal(self) -> float:
        """The longest sum of all averages over the deviation of its noise.

        The averages then have the norm of the clip, and one direction.
        """
        query: GaussianAverageQuery = self.queries.gradients
        return (
            math.sqrt(self.rounds) * query.denominator / query.noise_multiplier
        )

    def with_choice(
        self,
        name: str,
        value: str,
        reason: str | Callable[[], str] = "",
        **changes: Any,
    ) -> Self:
        """Returns the settings with one more line, and with other values."""
        line = SettingLine(name, value, reason)
        return dataclasses.replace(
            self, choices=(*self.choices, line), **changes
        )

    @override
    def __str__(self) -> str:
        lines: list[str] = []
        for choice in self.choices:
            lines += textwrap.wrap(
                str(choice),
                _WIDTH,
                initial_indent=f"  {choice.name:<{_NAMES}}",
                subsequent_indent=" " * (2 + _NAMES),
                break_on_hyphens=False,
                break_long_words=False,
            )
        return "\n".join(lines)

    __repr__ = __str__
