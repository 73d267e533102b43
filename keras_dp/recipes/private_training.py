"""From a Keras model, data and a privacy target to a private training."""

import contextlib
import os
from typing import Any, Literal

import keras

from keras_dp import _check
from keras_dp.budgets import chosen_account
from keras_dp.dp_queries import (
    DPQuery,
    GaussianAverageQuery,
    NormalizedQuery,
)
from keras_dp.errors import BudgetExceededError, CalibrationError
from keras_dp.keras_internals import print_line
from keras_dp.ledger import AccountRecord, PrivacyLedger, RunRecord, Strategy
from keras_dp.ledger.places.place import place_of
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.planning.calibration import check_below_share_of, check_target
from keras_dp.recipes.advice import advice, signal_of
from keras_dp.recipes.assembly import assemble, compile_options
from keras_dp.recipes.clip import clip_of
from keras_dp.recipes.correlation import (
    Correlation,
    Noise,
    check_noise,
    correlation_of,
)
from keras_dp.recipes.held_rounds import (
    HeldRounds,
    interrupted_runs,
    refunded,
)
from keras_dp.recipes.noise_for_target import (
    RoundQueries,
    queries_for,
)
from keras_dp.recipes.training_data import TrainingData, training_data
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget, RunDetails
from keras_dp.spending.epsilon_limit import default_delta
from keras_dp.training import PrivateModel
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import TARGETS
from keras_dp.training.private_model import check_kind


def make_private(
    model: keras.Model,
    data: Any,
    *,
    target_epsilon: float,
    epochs: int | None = None,
    ledger: PrivacyLedger | str | os.PathLike[str] = "privacy.ledger",
    batch_size: int | None = None,
    delta: float | None = None,
    l2_norm_clip: float | Literal["automatic"] | None = None,
    noise: Noise = "independent",
    precision: Literal["assumed", "proven"] = "assumed",
    optimizer: Any = None,
    learning_rate: Any = None,
    average: Literal["auto"] | None = "auto",
    validation_data: Any = None,
    batch_statistics: DPQuery | Literal["auto"] | None = None,
    unit: str | None = None,
    unit_ids: Any = None,
    rows_per_unit: int | None = None,
    map: Any = None,  # noqa: A002 - as in tf.data.
    augment: Any = None,
    views: int = 1,
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
        data: `(x, y)` or `(x, y, sample_weight)`, arrays or nests of arrays
            of equal length; a finite `tf.data.Dataset` or `PyDataset`, which
            is read into memory (see `PoissonBatches.from_dataset`); or a
            sampler: a `PoissonBatches` with microbatches, or another one of
            `keras_dp.sampling`.
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
        noise: "independent" in each round. "correlated" lets the noise of
            rounds partly cancel in their sums, where this is expected to leave
            less noise: it chooses bands, coefficients and samples, see
            `plan_correlated_noise`, and says what it chose. Or a strategy of
            your own, such as `BandedToeplitz`; see `CorrelatedSumQuery`.
        precision: "proven" makes the bound on an example's gradient hold in
            floating point, rounding included, at up to 1.3 times the time of a
            step; see `docs/finite_precision.md`. Noise must be independent.
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
        validation_data: As in `keras.Model.fit`: `fit()` evaluates it after
            each epoch, without privacy.
        batch_statistics: "auto" trains BatchNormalization, where the model has
            any: gradients and statistics share the noise that meets the
            target, see `plan_batch_statistics`. Or a query of your own, with
            its own noise. Without it such layers are refused;
            `replace_batch_normalization` does without them.
        unit: The person or thing that one record stands for, such as
            "patient". A new ledger records it. By default it is what is drawn:
            "example", "user" or "microbatch", or "unit" with `unit_ids`.
        unit_ids: Array `[N]` with the unit of each record, such as patient
            numbers. At most `rows_per_unit` records of each unit are kept,
            chosen at random.
        rows_per_unit: How many records one unit has at most. Target and reports
            are then for all of them together. By default the value of an open
            ledger, else 1. With `unit_ids` and a path it must be given.
        map: Function of TensorFlow from one record to another, which is
            called each time that a record is drawn; see `PoissonBatches`.
        augment: Random changes of the inputs of each record, anew each time
            that it is drawn: Keras layers such as `RandomFlip`, alone, in a
            list or in a `Sequential`, or a function of the inputs of one
            record. See `keras_dp.training.Augmentation`.
        views: How often a drawn record is changed, >= 1. The mean gradient of
            its views is clipped once, which costs no privacy, but as much time
            as so many records.
        run: As in `PrivateModel.fit`, which takes it from here. If the ledger
            has accounts, the noise is large enough for the account that pays
            to have room for all rounds.
        verbose: Whether to print what was chosen.
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
    Private training of 'sequential...': 640 records, samples of 64 expected...
    >>> history = private.fit(verbose=0)
    >>> 2.99 < history.history["epsilon"][-1] <= 3
    True
    """
    # One body: the order in which settings follow from others is the recipe.
    clip_of(l2_norm_clip, None)  # Raises before data is read.
    _check_numbers(target_epsilon, delta, epochs, batch_size)
    _check_automatic(learning_rate, average)
    check_noise(noise, data, l2_norm_clip, precision)
    check_kind(model, releases_statistics=batch_statistics is not None)
    details = RunDetails.of(run)
    if rows_per_unit is None and isinstance(ledger, PrivacyLedger):
        own_rows = ledger.header.rows_per_unit
        rows_per_unit = own_rows if own_rows > 1 else None
    given = training_data(
        data,
        batch_size=batch_size,
        unit_ids=unit_ids,
        rows_per_unit=rows_per_unit,
        map=map,
        augment=augment,
        views=views,
    )
    compiled = compile_options(model, **options)
    clip, gamma = clip_of(l2_norm_clip, compiled["loss"], model)
    is_new = isinstance(ledger, (str, os.PathLike)) and not (
        place_of(ledger).exists()
    )
    if is_new:  # It is created when nothing is left that may be refused.
        own = PrivacyLedger.in_memory(
            dataset="new",
            unit=unit or given.drawn_unit,
            rows_per_unit=rows_per_unit or 1,
        )
    else:
        own = opened(ledger, unit, rows_per_unit, given.drawn_unit)
    units = given.units_of(own.header.rows_per_unit)
    if delta is None:
        delta = default_delta(units)
    check_below_share_of(units, delta)
    target = PrivacyTarget(target_epsilon, delta)
    judge(TARGETS, target_epsilon)
    account = chosen_account(own, details.account)

    def found(
        samples: Sampler,
        epochs: int,
        held: HeldRounds,
        account: AccountRecord | None,
        strategy: Strategy | None,
    ) -> RoundQueries:
        return queries_for(
            target,
            model,
            samples,
            epochs,
            held,
            l2_norm_clip=clip,
            gamma=gamma,
            precision=precision,
            strategy=strategy,
            private_metrics=options.get("private_metrics"),
            batch_statistics=batch_statistics,
            account=account,
        )

    def chosen(
        held: HeldRounds, account: AccountRecord | None
    ) -> tuple[int, Correlation, RoundQueries]:
        long = epochs or given.enough_epochs(target, held)
        samples = given.samples(target, long, held)
        rounds = long * samples.rounds_per_epoch
        how = correlation_of(noise, given, samples, rounds, target, held)
        queries = found(how.samples, long, held, account, how.strategy)
        return long, how, queries

    held = HeldRounds.of(own)
    continued: RunRecord | None
    for continued, rest in interrupted_runs(own, details, account):
        # Are its rounds those that the arguments led to before it began?
        before = HeldRounds.of(own, before=continued)
        with contextlib.suppress(CalibrationError, BudgetExceededError):
            long, how, queries = chosen(before, refunded(account, continued))
            if (
                queries.round == rest.round
                and held.epsilon(target) <= target.epsilon
            ):
                break
    else:
        continued = None
        held.check_left(target)
        with contextlib.ExitStack() as naming:
            if held.rounds:  # Then the target of a first training is named.
                nothing = held._replace(replay=held.replay.of(()))
                long, how, fresh = chosen(nothing, None)
                rounds = long * how.samples.rounds_per_epoch
                signal = signal_of(fresh.gradients, rounds)
                naming.enter_context(held.naming(target, fresh.round, rounds))
            long, how, queries = chosen(held, account)
            if held.rounds:
                rounds = long * how.samples.rounds_per_epoch
                held.check_worth(
                    target, signal_of(queries.gradients, rounds) / signal
                )
    if is_new:
        own = opened(ledger, unit, rows_per_unit, given.drawn_unit)
        held = HeldRounds.of(own)
    private, rate, averaged = assemble(
        model,
        how.samples,
        queries,
        ledger=own,
        epochs=long,
        compiled=compiled,
        optimizer=optimizer,
        learning_rate=learning_rate,
        average=average,
    )
    private.target, private.run = target, details
    private.validation_data = validation_data
    private.last_run = None if continued is None else continued.row
    if verbose:
        summary = _summary(private, held, queries, continued)
        print_line(f"{summary}{_of_units(private, given)}")
        if continued is not None:
            print_line(
                "Give fit the callback BackupAndRestore that the run had, or "
                "restore its weights: without them the weights and a schedule "
                "of learning rates begin anew, with the rounds that are left."
            )
        rounds = long * how.samples.rounds_per_epoch
        if sentence := how.sentence(private.optimizer.inner, rounds):
            print_line(sentence)
        if rate is not None:
            print_line(rate)
        if averaged is not None:
            print_line(
                f"Weights are averaged over about {averaged:,} rounds. "
                "average=None does not."
            )
        if queries.released is queries.gradients and continued is None:
            for line in advice(
                model,
                queries.gradients,
                how.samples,
                long,
                lambda: given.enough_epochs(target, held) if epochs else long,
                lambda longer: (
                    found(how.samples, longer, held, account, None).gradients
                ),
            ):
                print_line(line)
    return private


def _check_numbers(
    target_epsilon: float,
    delta: float | None,
    epochs: int | None,
    batch_size: int | None,
) -> None:
    """Raises for arguments that are out of range, before any data is read."""
    if epochs is not None:
        _check.integer_at_least(1, epochs=epochs)
    _check.finite_positive(target_epsilon=target_epsilon)
    if delta is not None:
        check_target(target_epsilon, delta)
    if batch_size is not None:
        _check.integer_at_least(1, batch_size=batch_size)


def _check_automatic(learning_rate: Any, average: Any) -> None:
    """Raises for values that are not in the list of `make_private`."""
    if average not in ("auto", None):
        raise ValueError(
            '`average` must be "auto" or None. Received: '
            f"average={_check.shown(average)}. For averages of your own, give "
            "an optimizer with use_ema=True."
        )
    schedules = keras.optimizers.schedules.LearningRateSchedule
    if learning_rate is None or isinstance(learning_rate, schedules):
        return
    if isinstance(learning_rate, str):
        if learning_rate in ("auto", "keep"):
            return
        raise ValueError(
            '`learning_rate` must be "auto", "keep", a number or a schedule. '
            f'Received: learning_rate={learning_rate!r}. "keep" keeps the rate '
            "of the optimizer."
        )
    _check.finite_positive(learning_rate=learning_rate)


def _summary(
    private: PrivateModel,
    held: HeldRounds,
    queries: RoundQueries,
    continued: RunRecord | None,
) -> str:
    """Returns what was chosen, for a person."""
    samples: Any = private.samples
    target: Any = private.target
    query = queries.gradients
    drawn = f"{samples.expected_sample_size:,.6g}"
    kind = "records"
    if samples.unit == "user":
        kind = "users"
    elif samples.microbatches is not None:
        drawn += f" in {query.denominator:,.6g} microbatches"
    views = "" if samples.views == 1 else f", each with {samples.views} views"
    statistics = ""
    if isinstance(queries.batch_statistics, GaussianAverageQuery):
        of_statistics = queries.batch_statistics.noise_multiplier
        statistics = f", of batch statistics {of_statistics:.4g}"
    clip = f"clip {query.l2_norm_clip:g}"
    if query.gamma is not None:
        clip = f"automatic clipping (gamma {query.gamma:g})"
    multiplier = query.noise_multiplier
    released: Any = queries.released
    if isinstance(released, NormalizedQuery):
        total: Any = released.numerator_query
        multiplier = total.noise_multiplier
        statistics += ", correlated"
    continues, left = "", ""
    if continued is not None and continued.rest is not None:
        continues = f" continues the interrupted run {continued.number}"
        left = f", of which {continued.rest.count:,} are left"
    return (
        f"Private training of {private.model.name!r}{continues}: "
        f"{samples.population_size:,} {kind}, "
        f"samples of {drawn} expected{views}, "
        f"{private.epochs * samples.rounds_per_epoch:,} rounds in "
        f"{private.epochs:,} epochs{left}, {clip}, noise "
        f"multiplier {multiplier:.6g}{statistics}. Target: epsilon "
        f"{target.epsilon:g} at delta = {target.delta:.3g}, for all rounds of "
        f"the ledger {held.place}, which holds {held.sentence(target)}"
    )


def _of_units(private: PrivateModel, given: TrainingData) -> str:
    """Returns what a record is taken to be, for a person who knows better."""
    header = private.optimizer.required_ledger().header
    unit, rows = header.unit, header.rows_per_unit
    if given.units is not None:
        return (
            f" Of one {unit} at most {rows:,} records are kept: "
            f"{given.left_out:,} are left out, and {given.units:,} units "
            "remain."
        )
    if rows > 1:
        return f" One {unit} is taken to have at most {rows:,} records."
    if given.drawn_unit == "example" and unit not in UNITS_OF_ROWS:
        return (
            f" Each record is taken to be one {unit}: pass unit_ids= if one "
            "has several."
        )
    return ""


def opened(
    ledger: Any,
    unit: str | None,
    rows_per_unit: int | None,
    drawn_unit: str,
) -> Any:
    """Returns the ledger, opened or created if it is a path.

    A new one has the name of its place as its data set, and the unit that is
    drawn, unless another one is named.

    Raises:
        ValueError: The ledger is open, and has another unit or `rows_per_unit`.
    """
    if isinstance(ledger, (str, os.PathLike)):
        place = place_of(ledger)
        dataset = None
        if not place.exists():
            dataset = place.short_name
            unit = drawn_unit if unit is None else unit
        return PrivacyLedger.open(
            ledger, dataset=dataset, unit=unit, rows_per_unit=rows_per_unit
        )
    if not isinstance(ledger, PrivacyLedger):
        raise TypeError(
            "`ledger` must be a PrivacyLedger or the path of its file. "
            f"Received: ledger={_check.shown(ledger)}. Pass a path such as "
            '"run.ledger".'
        )
    given = {"unit": unit, "rows_per_unit": rows_per_unit}
    for name, value in given.items():
        own = getattr(ledger.header, name)
        if value not in (None, own):
            raise ValueError(
                f"`{name}` must be {own!r}, as in the ledger. Received: "
                f"{name}={value!r}. Leave `{name}` out, or open another ledger."
            )
    return ledger
