"""Puts a private training together, from its samples and queries."""

import contextlib
from typing import Any, NamedTuple

import keras

from keras_dp.keras_internals import (
    compile_arguments_of,
    fresh_copy_of,
    optimizers_in,
)
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers import DPOptimizer
from keras_dp.optimizers.inner_optimizer import check_inner, is_closed
from keras_dp.recipes.learning_rate import (
    ChosenRate,
    build,
    chosen_rate,
    numbers_to_reproduce,
    trained_weights,
)
from keras_dp.recipes.noise_for_target import RoundQueries
from keras_dp.recipes.settings import Choice
from keras_dp.sampling import Sampler
from keras_dp.training import PrivateModel


class Assembled(NamedTuple):
    """A private model that is ready to `fit`, and what was chosen for it.

    Attributes:
        model: The private model, with samples and epochs, without a target.
        choices: A line for the learning rate and for the average of weights,
            where they were chosen here.
    """

    model: PrivateModel
    choices: tuple[Choice, ...]


def assemble(
    model: keras.Model,
    samples: Sampler,
    queries: RoundQueries,
    *,
    ledger: PrivacyLedger,
    epochs: int,
    compiled: dict[str, Any],
    optimizer: Any,
    learning_rate: Any,
    average: str | None,
) -> Assembled:
    """Returns the private model around a model.

    Args:
        model: The model of the user.
        samples: Draws the samples.
        queries: The queries of each round.
        ledger: Records the rounds.
        epochs: >= 1.
        compiled: The arguments of `compile`; see `compile_options`.
        optimizer: As in `make_private`.
        learning_rate: As in `make_private`.
        average: As in `make_private`.
    """
    if learning_rate is None:
        is_chosen = isinstance(optimizer, keras.optimizers.Optimizer)
        learning_rate = "keep" if is_chosen else "auto"
    private = PrivateModel(model)
    given = _given(model, optimizer)
    check_inner(given)
    rounds = epochs * samples.rounds_per_epoch
    choices: list[Choice] = []
    if learning_rate == "auto":
        build(model, samples, eagerly=compiled.get("run_eagerly", False))
        found = chosen_rate(
            given,
            queries.gradients,
            rounds,
            trained_weights(model),
            compiled["loss"],
            numbers_to_reproduce(samples),
        )
        learning_rate = None if found is None else found.rate
        choices.append(_choice_of_rate(given, found))
    elif isinstance(learning_rate, str):
        learning_rate = None
    elif len(optimizers_in(given)) > 1 or not hasattr(given, "learning_rate"):
        raise ValueError(
            '`learning_rate` must be "keep" for an optimizer that holds '
            "others, each with a rate of its own. Received: "
            f"{type(given).__name__}. Set their rates."
        )
    inner = _taken(given, learning_rate)
    private_optimizer = DPOptimizer(
        inner, query=queries.released, ledger=ledger
    )
    if average is not None and (
        averaged := average_weights(private_optimizer, rounds)
    ):
        value = f"of the weights of about {averaged:,} rounds"
        choices.append(Choice("average", value, "average=None takes the last"))
    private.compile(
        private_optimizer,
        batch_statistics=queries.batch_statistics,
        **compiled,
    )
    private.samples, private.epochs = samples, epochs
    return Assembled(private, tuple(choices))


def _choice_of_rate(
    given: keras.optimizers.Optimizer, found: ChosenRate | None
) -> Choice:
    """Returns the line of the table on a learning rate that was looked for."""
    name = "learning rate"
    if found is None:
        why = f"{type(given).__name__} has no one number or schedule of steps"
        return Choice(name, "kept", why)
    decays = "; weight decay follows it" if given.weight_decay else ""
    return Choice(
        name, found.value, f'{found.reason}{decays}; "keep" does not change it'
    )


def compile_options(model: keras.Model, **given: Any) -> dict[str, Any]:
    """Returns the arguments of `compile`, first those given, then the model's.

    Args:
        model: The model of the user.
        **given: Arguments of `PrivateModel.compile`; `None` for none.

    Raises:
        ValueError: There is no loss.
    """
    found = compile_arguments_of(model)
    found.pop("optimizer", None)
    found |= {name: value for name, value in given.items() if value is not None}
    found = {name: each for name, each in found.items() if each is not None}
    # Keras has 1 where nobody chose a number.
    if "steps_per_execution" not in given and (
        found.get("steps_per_execution", 1) == 1
    ):
        found["steps_per_execution"] = "auto"
    if "loss" not in found:
        raise ValueError(
            "`loss` must be given, or the model be compiled with one. "
            'Received: loss=None. Pass loss="mse", or whatever trains it.'
        )
    return found


def _taken(given: keras.optimizers.Optimizer, rate: Any) -> Any:
    """Returns an optimizer for this training alone.

    One of a class of the user is taken itself, the first time: what it refers
    to may refer to it.
    """
    is_new = not given.built and not is_closed(given)
    if is_new and not type(given).__module__.startswith("keras."):
        with contextlib.suppress(TypeError):  # A number after a schedule.
            if rate is not None:
                given.learning_rate = rate
            return given
    return fresh_copy_of(given, rate)


def _given(model: keras.Model, optimizer: Any) -> keras.optimizers.Optimizer:
    """Returns the optimizer that is given, or else that of the model."""
    if optimizer is None:
        optimizer = compile_arguments_of(model).get("optimizer", "adam")
    return keras.optimizers.get(optimizer)


# An average is over about so many parts of a training: the last tenth.
_PARTS = 10


def average_weights(optimizer: DPOptimizer, rounds: int) -> int | None:
    """Makes a private optimizer average the weights of a training.

    It is a moving average over about the last tenth of the rounds: weights of
    `k` rounds ago count `(1 - 10 / rounds)**k` as much as the last ones.

    Args:
        optimizer: Not built yet. One that averages already stays as it is.
        rounds: The number of rounds of the training, >= 1.

    Returns:
        Over how many rounds it averages, or `None` if it did so before.
    """
    if optimizer.use_ema:
        return None
    optimizer.use_ema = True
    optimizer.ema_momentum = max(0.0, 1 - _PARTS / rounds)
    return max(1, round(rounds / _PARTS))
