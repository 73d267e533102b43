"""Puts a private training together, from its samples and queries."""

from typing import Any, NamedTuple

import keras

from keras_dp.keras_internals import compile_arguments_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers import DPOptimizer
from keras_dp.optimizers.inner_optimizer import check_inner
from keras_dp.recipes.averaging import average_weights
from keras_dp.recipes.learning_rate import (
    ChosenRate,
    build,
    chosen_rate,
    numbers_to_reproduce,
    trained_weights,
    with_rate,
)
from keras_dp.recipes.noise_for_target import RoundQueries
from keras_dp.sampling import Sampler
from keras_dp.training import PrivateModel

# Arguments that are taken over from the `compile` of the user's model.
_KEPT = ("loss", "loss_weights", "metrics", "weighted_metrics")


class Assembled(NamedTuple):
    """A private model that is ready to `fit`, and what was chosen for it.

    Attributes:
        model: The private model, with samples and epochs, without a target.
        rate: The learning rate, `None` if it was not chosen here.
        averaged: Over how many rounds weights are averaged, `None` if that was
            not chosen here.
    """

    model: PrivateModel
    rate: ChosenRate | None
    averaged: int | None


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
    inner = _inner(model, optimizer)
    check_inner(inner)
    rounds = epochs * samples.rounds_per_epoch
    rate = None
    if learning_rate == "auto":
        build(model, samples)
        rate = chosen_rate(
            inner,
            queries.gradients,
            rounds,
            trained_weights(model),
            compiled["loss"],
            numbers_to_reproduce(samples),
        )
    if rate is not None:
        inner = with_rate(inner, rate.rate)
    elif learning_rate not in ("auto", "keep"):
        inner = with_rate(inner, learning_rate)
    averaged = None
    if average is not None:
        averaged = average_weights(inner, rounds)
    private.compile(
        DPOptimizer(inner, query=queries.released, ledger=ledger),
        batch_statistics=queries.batch_statistics,
        **compiled,
    )
    private.samples, private.epochs = samples, epochs
    return Assembled(private, rate, averaged)


def compile_options(model: keras.Model, **given: Any) -> dict[str, Any]:
    """Returns the arguments of `compile`, first those given, then the model's.

    Args:
        model: The model of the user.
        **given: Arguments of `PrivateModel.compile`; `None` for none.

    Raises:
        ValueError: There is no loss.
    """
    before = compile_arguments_of(model)
    found = {
        name: value
        for name, value in {
            **{n: before.get(n) for n in _KEPT},
            **{
                name: value
                for name, value in given.items()
                if value is not None
            },
        }.items()
        if value is not None
    }
    if "loss" not in found:
        raise ValueError(
            "`loss` must be given, or the model be compiled with one. "
            'Received: loss=None. Pass loss="mse", or whatever trains it.'
        )
    return found


def _inner(model: keras.Model, optimizer: Any) -> keras.optimizers.Optimizer:
    """Returns a new optimizer like the given one, or the model's."""
    if optimizer is None:
        optimizer = compile_arguments_of(model).get("optimizer", "adam")
    found = keras.optimizers.get(optimizer)
    if found is optimizer:  # One that is built belongs to its variables.
        return type(found).from_config(found.get_config())
    return found
