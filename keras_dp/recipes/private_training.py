"""From a Keras model, data and a privacy target to a private training."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, Never

import keras

from keras_dp import _check
from keras_dp.budgets import chosen_account
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery
from keras_dp.errors import (
    BudgetExceededError,
    CalibrationError,
    UnsupportedEventError,
)
from keras_dp.keras_internals import compile_arguments_of, print_line
from keras_dp.ledger import PrivacyLedger, RunRecord
from keras_dp.ledger.places.place import place_of
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.optimizers import DPOptimizer
from keras_dp.planning.calibration import checked_target, default_delta
from keras_dp.recipes.clip import choose_clip, clip_of
from keras_dp.recipes.correlated_noise import check_noise
from keras_dp.recipes.held_rounds import (
    HeldRounds,
    interrupted_runs,
    refunded,
)
from keras_dp.recipes.learning_rate import choose_average, choose_learning_rate
from keras_dp.recipes.noise_for_target import check_room, choose_noise
from keras_dp.recipes.samples import (
    choose_epochs,
    choose_samples,
    enough_epochs,
)
from keras_dp.recipes.settings import Noise, SettingLine, Settings
from keras_dp.recipes.training_data import Records, TrainingData
from keras_dp.sampling import PoissonBatches, Sampler
from keras_dp.spending import RunDetails
from keras_dp.training import PrivateModel
from keras_dp.training.private_model import check_kind

_AS_DATA = "Pass (x, y), or (x, y, sample_weight), as the data."
# More epochs are worth a line if the signal grows by such a factor.
_WORTH = 1.1
# Below such a signal nothing was learned (docs/choosing.md).
_LEAST_SIGNAL = 100.0
# With less of the signal of a first training, another one is not worth it.
_LEAST_SHARE = 0.25
# The table says what so many times fewer epochs would keep.
_SHORTER = 4


def make_private(
    model: keras.Model,
    data: Any,
    *more: Never,
    target_epsilon: float,
    epochs: int | None = None,
    ledger: PrivacyLedger | str | os.PathLike[str] = "privacy.ledger",
    batch_size: int | None = None,
    delta: float | None = None,
    l2_norm_clip: float | Literal["automatic"] | None = None,
    noise: Noise = "independent",
    optimizer: Any = None,
    learning_rate: Any = None,
    average: Literal["auto"] | None = "auto",
    batch_statistics: DPQuery | Literal["auto"] | None = None,
    run: RunDetails | str | None = None,
    verbose: bool = True,
    **options: Any,
) -> PrivateModel:
    """Returns a private model that is ready to `fit`.

    It does what can be done by hand with `PoissonBatches`, `calibrate_scale`,
    `GaussianAverageQuery`, `DPOptimizer` and `PrivateModel`, and derives what
    must agree from one argument: the sampling probability and the denominator
    from `batch_size`, the noise from the target and from what the ledger holds
    already. The model is held, not copied: it is trained by `fit`.

    Guarantee: after `fit()` all rounds of the ledger together are
    `(target_epsilon, delta)`-private, by a certified bound. Neighbours differ
    in one unit, with all of its kept records, that is added or removed. If the
    samples support no stronger relation, the unit is replaced or zeroed out
    instead. `fit` ends before a round would
    exceed the target. The numbers of records become public, kept and left out,
    and so does the number of units.

    If a training ends before its plan, reports and the target count the whole
    plan, because the reason to stop may depend on the data. An interrupted
    training goes on under its one plan when `make_private` is called with the
    same arguments again, also in another process: with the same noise and the
    rounds that its plan has left.

    Args:
        model: Any Keras model; where it is compiled, its optimizer, loss and
            metrics are taken over.
        data: The records: `(x, y)` or `(x, y, sample_weight)`, arrays or nests
            of arrays; a `tf.data.Dataset` or `PyDataset`; a sampler of
            `keras_dp.sampling`; or `Records`, which also say whose records
            they are and how they are changed when they are drawn.
        *more: Nothing: all other arguments are passed by name.
        target_epsilon: The most epsilon that all rounds of the ledger may
            spend together, > 0.
        epochs: Number of epochs that `fit()` will run, >= 1. By default the
            fewer of 40 and 80 with 97 % of the signal of 80, and at least
            100 rounds; see `docs/choosing.md`.
        ledger: The ledger of the data set, or its path or URL as
            `PrivacyLedger.open` takes it; it is created if there is none. By
            default all trainings in one folder count together; name the file
            where they are on several data sets.
        batch_size: Expected number of records in a sample. By default the
            smallest with nearly the best signal for what the ledger leaves;
            see `plan`.
        delta: In (0, 1/N) for N units, by default `N^-1.1`.
        l2_norm_clip: Bound on the norm of an example's gradient, > 0. By
            default 1; but 1/32 where the loss is a mean of squared or absolute
            errors, and about 1 / sqrt(n), at least 1/32, where it is a mean of
            binary cross entropies of n outputs: such gradients are short
            (`docs/choosing.md`). Or "automatic": every gradient `g` is
            multiplied by `1 / (norm of g + 0.01)`, so that there is no clip to
            choose; see `GaussianSumQuery`.
        noise: "independent" in each round. "proven" is independent, and makes
            the bound on an example's gradient hold in floating point, rounding
            included, at up to 1.3 times the time of a step; see
            `docs/finite_precision.md`. "correlated" lets the noise of rounds
            partly cancel in their sums, where this is expected to leave less
            noise: it chooses bands, coefficients and samples, see
            `plan_correlated_noise`, and says what it chose. Or a strategy of
            your own, such as `BandedToeplitz`; see `CorrelatedSumQuery`.
        optimizer: Name, or Keras optimizer; by default that of the compiled
            model, else "adam".
        learning_rate: "auto" multiplies the learning rate of the optimizer, or
            its schedule, so that it suits the noise and the number of rounds;
            a `CosineDecay`, for instance, then ends with the training. How is
            said in `docs/choosing.md`. "keep" keeps it. A number > 0 or
            a schedule of `keras.optimizers.schedules` takes its place. By
            default "keep" if `optimizer` is a Keras optimizer, whose rate was
            chosen for this training, and else "auto".
        average: "auto" makes the optimizer average the weights of about the
            last tenth of the rounds, unless it averages anyway (`use_ema`).
            They are the weights of the model at the end of `fit`, in
            validation, and for callbacks at the end of an epoch. `None`
            leaves that to the optimizer.
        batch_statistics: "auto" trains BatchNormalization, where the model has
            any: gradients and statistics share the noise that meets the
            target, see `plan_batch_statistics`. Or a query of your own, with
            its own noise. Without it such layers are refused;
            `replace_batch_normalization` does without them.
        run: The name of the training in the ledger, or `RunDetails`, which can
            also name the account that pays. `fit` takes it from here. If the
            ledger has accounts, the noise is large enough for the account that
            pays to have room for all rounds.
        verbose: Whether the first `fit` prints what was chosen: the attribute
            `settings` of the private model.
        **options: Arguments of `PrivateModel.compile`. `loss` and `metrics`,
            which are computed without noise and are not private, are by default
            those of the model. Private metrics keep their noise, and count
            towards the target.

    Raises:
        TypeError: `data` cannot be read, divided or capped.
        PrivateTrainingError: The model has a step or a loss of its own.
        UnsupportedLayerError: A layer makes examples interact.
        BudgetExceededError: The account pays for planned rounds only.
        CalibrationError: The rounds that the ledger holds leave so little of
            the target, or of the account, that noise would hide all that is
            learned.
        ValueError: An argument is out of its range, or there is no loss;
            correlated noise does not go
            with a sampler, a clip, batch statistics or an account; or the
            ledger has several accounts, of which `run` names none.

    >>> import numpy as np
    >>> x, y = np.zeros([640, 3], "float32"), np.zeros([640, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", loss="mse")
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> private = make_private(model, (x, y), ledger=ledger, batch_size=64,
    ...                        target_epsilon=3.0, epochs=2)
    >>> print(private.settings)
      target         epsilon 3 at delta = 0.00081: for all rounds of...
      records        640
      clip           0.03125: by the loss
      epochs         2
      samples        64 records expected
      noise          multiplier ...: the least that meets the target
    ...
    >>> history = private.fit(verbose=0)
    >>> 2.99 < history.history["epsilon"][-1] <= 3
    True
    """
    # One body: nothing is created before all that may be refused.
    if more:
        raise TypeError(
            "`data` must hold the targets and the weights, too. Received: "
            f"{len(more)} more arguments without a name. {_AS_DATA}"
        )
    _check.arguments_of(
        make_private,
        keras.Model.compile,
        PrivateModel.compile,
        given=options,
        elsewhere={
            _AS_DATA: keras.utils.pack_x_y_sample_weight,
            "Pass Records(data, ...) with it.": Records,
            "Pass it to fit.": keras.Model.fit,
            "Pass a sampler with it as the data.": Sampler,
            "Pass PoissonBatches with it as the data.": PoissonBatches,
            "It follows from the other arguments; with PrivateModel you choose "
            "it (docs/guides/by_hand.md).": GaussianAverageQuery,
        },
    )
    clip_of(l2_norm_clip, None)  # Raises before data is read.
    _check_numbers(target_epsilon, delta, epochs, batch_size)
    _check_automatic(learning_rate, average)
    _check.verbosity(verbose)
    records = Records.of(data, ledger)
    check_noise(noise, records.data, l2_norm_clip)
    check_kind(model, releases_statistics=batch_statistics is not None)
    details = RunDetails.of(run)
    given = records.read()
    given.check_size(batch_size)
    compiled = compile_options(model, **options)
    is_new = isinstance(ledger, (str, os.PathLike)) and not (
        place_of(ledger).exists()
    )
    if is_new:  # It is created when nothing is left that may be refused.
        own = PrivacyLedger.in_memory(
            dataset="new",
            unit=records.unit or given.drawn_unit,
            rows_per_unit=records.rows_per_unit or 1,
        )
    else:
        own = records.opened(ledger, given.drawn_unit)
    asked = Settings(
        model,
        compiled,
        details,
        given,
        HeldRounds.asked(own, given, target_epsilon, delta),
        epochs=epochs,
        batch_size=batch_size,
        l2_norm_clip=l2_norm_clip,
        noise=noise,
        batch_statistics=batch_statistics,
        optimizer=optimizer,
        learning_rate=learning_rate,
        average=average,
    )
    settings, continued = _beside_held(asked)
    settings = resolved(settings, ANSWERS)
    if continued is None:
        settings = _with_signal(settings, asked)
    private = assembled(settings, own)
    if is_new:
        own = records.opened(ledger, given.drawn_unit)
        private.optimizer.ledger = own
    private.settings = replace(
        settings,
        choices=(*_terms(settings, own, continued), *settings.choices),
    )
    private.shows_settings = verbose
    if continued is not None:
        private.last_run = continued.row
        if verbose:
            print_line(
                "Give fit the callback BackupAndRestore that the interrupted "
                "run had, or restore its weights: without them the weights and "
                "a schedule of learning rates begin anew, with the rounds that "
                "are left."
            )
    return private


def compile_options(model: keras.Model, **given: Any) -> dict[str, Any]:
    """Returns the arguments of `compile`: those of the model, unless given."""
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


Step = Callable[[Settings], Settings]
# These choose what a round is, and how many there are. Each follows from those
# before it, and the noise also from what the ledger holds.
ROUNDS: tuple[Step, ...] = (
    check_room,
    choose_clip,
    choose_epochs,
    choose_samples,
    choose_noise,
)
# These choose what the optimizer does with the answers.
ANSWERS: tuple[Step, ...] = (choose_learning_rate, choose_average)


def resolved(settings: Settings, steps: tuple[Step, ...] = ROUNDS) -> Settings:
    """Returns settings after some steps, each of which chooses one."""
    return functools.reduce(lambda chosen, step: step(chosen), steps, settings)


def assembled(settings: Settings, ledger: PrivacyLedger) -> PrivateModel:
    """Returns the private model with all settings that are chosen."""
    private = PrivateModel(settings.model)
    queries = settings.queries
    private.compile(
        DPOptimizer(settings.optimizer, query=queries.released, ledger=ledger),
        batch_statistics=queries.batch_statistics,
        **settings.compiled,
    )
    private.settings = settings
    return private


def _beside_held(asked: Settings) -> tuple[Settings, RunRecord | None]:
    """Returns the settings, and the interrupted run that they go on with.

    A run goes on if its rounds are those that the arguments led to before it
    began. A new training must have a good part of the signal of a first one:
    else it is refused with a `CalibrationError`.
    """
    held = asked.held
    account = chosen_account(held.ledger, asked.run.account)
    for run in interrupted_runs(held.ledger, asked.run, account):
        before = HeldRounds.of(held.ledger, held.target, before=run)
        paying = refunded(account, run)
        with contextlib.suppress(CalibrationError, BudgetExceededError):
            settings = resolved(replace(asked, held=before, account=paying))
            is_same = run.rest and settings.queries.round == run.rest.round
            if is_same and held.epsilon <= held.target.epsilon:
                return settings, run
    asked = replace(asked, account=account)
    if not held.rounds:
        return resolved(asked), None
    nothing = held._replace(replay=held.replay.of(()))
    fresh = resolved(replace(asked, held=nothing, account=None))
    # Errors name the target of a first training.
    with held.naming(fresh.queries.round, fresh.rounds):
        settings = resolved(asked)
        share = settings.signal / fresh.signal
        if share < _LEAST_SHARE:
            with held.explaining():
                raise CalibrationError(
                    "`target_epsilon` must leave room for another training. "
                    f"Received: target_epsilon={held.target.epsilon!r}, of "
                    f"which the rest gives {share:.0%} of the signal of a "
                    "first training."
                )
    return settings, None


def _terms(
    settings: Settings, ledger: PrivacyLedger, continued: RunRecord | None
) -> Iterator[SettingLine]:
    """Yields the lines on the promise, and on whom it is made to."""
    target, data = settings.held.target, settings.data
    held = HeldRounds.of(ledger, target)
    yield SettingLine(
        "target",
        f"epsilon {target.epsilon:g} at delta = {target.delta:.3g}",
        f"for all rounds of the ledger {held.place}, which holds "
        f"{held.sentence.rstrip('.')}",
    )
    if continued is not None and continued.rest is not None:
        yield SettingLine(
            "continues",
            f"the interrupted run {continued.number}",
            f"of which {continued.rest.count:,} rounds are left",
        )
    of_users = " users" if data.drawn_unit == "user" else ""
    yield SettingLine(
        "records", f"{data.population:,}{of_users}", _about_units(data, ledger)
    )


def _about_units(given: TrainingData, ledger: PrivacyLedger) -> str:
    """Returns what a record is taken to be, for a person who knows better."""
    header = ledger.header
    unit, rows = header.unit, header.rows_per_unit
    if given.units is not None:
        return (
            f"at most {rows:,} of one {unit} are kept: {given.left_out:,} are "
            f"left out, and {given.units:,} units remain"
        )
    if rows > 1:
        return f"one {unit} is taken to have at most {rows:,}"
    if given.drawn_unit == "example" and unit not in UNITS_OF_ROWS:
        return (
            f"each is taken to be one {unit}: Records(unit_ids=) if one has "
            "several"
        )
    return ""


def _with_signal(settings: Settings, asked: Settings) -> Settings:
    """Adds a line on the signal, where noise is that of gradients alone.

    At one epsilon, the signal grows in proportion to the number of records.
    """
    if settings.strategy or settings.queries.batch_statistics is not None:
        return settings
    signal = settings.signal
    reason: str | Callable[[], str]
    reason = functools.partial(_about_other_epochs, settings, asked)
    if signal < _LEAST_SIGNAL:
        needed = float(f"{asked.data.population * _LEAST_SIGNAL / signal:.1e}")
        reason = (
            "hardly anything can be learned: at this epsilon about "
            f"{needed:,.0f} records are needed"
        )
    size = f"at most {signal:,.0f} times a weight's noise over all rounds"
    return settings.with_choice("signal", size, reason)


def _about_other_epochs(settings: Settings, asked: Settings) -> str:
    """Returns what fewer epochs would keep, or what more would add."""
    held, account = settings.held, settings.account
    asked = replace(asked, held=held, account=account)
    size = asked.batch_size
    if settings.samples is not asked.data.records:
        size = round(settings.samples.expected_sample_size)

    def share(epochs: int) -> float:
        other = resolved(replace(asked, batch_size=size, epochs=epochs))
        return other.signal / settings.signal

    with contextlib.suppress(
        BudgetExceededError, CalibrationError, UnsupportedEventError
    ):
        if asked.epochs is None:
            shorter = settings.epochs // _SHORTER
            return (
                f"{shorter:,} epochs would have {share(shorter):.0%} of it in "
                "a quarter of the time"
            )
        enough = enough_epochs(asked)
        if enough > asked.epochs and (more := share(enough)) >= _WORTH:
            return (
                f"{enough:,} epochs, which it takes without epochs=, would "
                f"have {more:.3g} times as much for the same epsilon"
            )
    return ""


def _check_numbers(
    target_epsilon: float,
    delta: float | None,
    epochs: int | None,
    batch_size: int | None,
) -> None:
    checked_target(
        target_epsilon, default_delta(None) if delta is None else delta
    )
    if epochs is not None:
        _check.integer_at_least(1, epochs=epochs)
    if batch_size is not None:
        _check.integer_at_least(1, batch_size=batch_size)


def _check_automatic(learning_rate: Any, average: Any) -> None:
    if average not in ("auto", None):
        raise ValueError(
            '`average` must be "auto" or None. Received: '
            f"average={_check.shown(average)}. For averages of your own, give "
            "an optimizer with use_ema=True."
        )
    schedules = keras.optimizers.schedules.LearningRateSchedule
    if callable(learning_rate) and not isinstance(learning_rate, schedules):
        raise TypeError(
            '`learning_rate` must be "auto", "keep", a number or a schedule. '
            f"Received: learning_rate={_check.shown(learning_rate)}. Pass a "
            "schedule of keras.optimizers.schedules, or one that derives from "
            "LearningRateSchedule and computes the same in its __call__."
        )
    if isinstance(learning_rate, str):
        if learning_rate not in ("auto", "keep"):
            raise ValueError(
                '`learning_rate` must be "auto", "keep", a number or a '
                f"schedule. Received: learning_rate={learning_rate!r}. "
                '"keep" keeps the rate of the optimizer.'
            )
    elif learning_rate is not None and not isinstance(learning_rate, schedules):
        _check.finite_positive(learning_rate=learning_rate)
