"""The best of a random number of private trainings, for the price of few."""

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import keras

from keras_dp import _check
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.replay import Replay
from keras_dp.errors import (
    PrivateTrainingError,
)
from keras_dp.keras_internals import name_counts, print_line
from keras_dp.ledger import (
    FullDataset,
    NonPrivateSum,
    PrivacyLedger,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.planning import calibrate_scale
from keras_dp.planning.calibration import checked_target, default_delta
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.noise_for_target import rounded_scale
from keras_dp.recipes.samples import sampler_of
from keras_dp.recipes.training_data import Records
from keras_dp.sampling import Sampler
from keras_dp.spending import RunDetails
from keras_dp.spending.epsilon_limit import EpsilonLimit
from keras_dp.spending.run import new_run
from keras_dp.training.advice.other_trainings import warn_of_other_ledgers
from keras_dp.tuning.best_of import (
    Found,
    best_of,
    like_the_first,
    silenced,
    uniform,
    withheld,
)
from keras_dp.tuning.priors import Prior, checked_space, drawn, values_of
from keras_dp.tuning.trials import (
    PrivateScore,
    Score,
    Trials,
    fault_of_records,
    rehearse,
)

_Result = TypeVar("_Result")

# The share of the target that may be left: the price itself is no nearer to
# the least one.
_PRECISION = 1e-4
# The event of a search whose errors were shown.
_ERRORS = Round(FullDataset(True), (NonPrivateSum("errors that were shown"),))


class SearchCost(NamedTuple):
    """The price of a search, beside other prices.

    Each is a certified epsilon at the delta of the search, without what the
    ledger holds already.

    Attributes:
        search: The search.
        one_trial: One trial alone, the dearest one.
        composed: As many of these trials as there are on average, all of which
            are seen: what an ordinary tuner costs. The mean is rounded up.
    """

    search: float
    one_trial: float
    composed: float


class PrivateSearch:
    """Tunes a private training: settings are drawn, and the best model is kept.

    The number of trials is drawn from a law, and stays secret. Each trial
    draws settings from their priors, trains a model privately and scores it.
    The model with the highest score is released, with its settings and its
    score. The noise is found so that all of this meets the target.

    Guarantee: `run` records one round in the ledger, durably, before the first
    trial: a `Selection`, whose price covers the law, and not what ran. The
    result of `run`, with all rounds of the ledger, is then `(target_epsilon,
    delta)`-private. What the process prints, logs and writes does not depend on
    the number of trials. Its running time does, and so does its use of memory:
    tell nobody how long a search took (`docs/guarantees.md`). A search that is
    interrupted has cost what it costs, and another one is another round.

    Trials are independent. Therefore nothing repeats a search: seeds that the
    program chose have no effect inside of it.

    Attributes:
        target: The target of all rounds of the ledger.
        selection: The event that the ledger will hold.
        noise_multipliers: The noise of each pair of a batch size and a number
            of epochs.

    Source: Liu and Talwar (2019), arXiv:1811.07971; Papernot and Steinke
    (2022), arXiv:2110.03620, Algorithm 1. We draw settings anew for each trial.

    >>> import numpy as np
    >>> from keras_dp.ledger import TruncatedNegativeBinomial
    >>> from keras_dp.tuning import LogUniform
    >>> x, y = np.zeros([640, 3], "float32"), np.zeros([640, 1], "float32")
    >>> def build(settings):
    ...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", loss="mse")
    ...     return model
    >>> search = PrivateSearch(
    ...     build, {"learning_rate": LogUniform(1e-3, 1.0)}, (x, y),
    ...     score=lambda model: -abs(float(model.bias.numpy()[0])),
    ...     law=TruncatedNegativeBinomial(shape=1, mean=2), target_epsilon=3.0,
    ...     epochs=1, batch_size=64,
    ...     ledger=PrivacyLedger.in_memory(dataset="doc"))
    Private search of 'sequential...': the best of 2 trials on average...
    """

    def __init__(
        self,
        build: Callable[[dict[str, Any]], keras.Model],
        space: Mapping[str, Prior],
        data: Any,
        score: Score,
        *,
        law: TruncatedNegativeBinomial,
        target_epsilon: float,
        epochs: int | None = None,
        batch_size: int | None = None,
        ledger: PrivacyLedger | str | os.PathLike[str] = "privacy.ledger",
        delta: float | None = None,
        l2_norm_clip: float | Literal["automatic"] = 1.0,
        learning_rate: Any = "keep",
        average: Literal["auto"] | None = "auto",
        run: RunDetails | str | None = None,
        debug: bool = False,
        verbose: bool = True,
    ) -> None:
        """Finds the noise, and records nothing.

        Args:
            build: From settings by name to a compiled Keras model, without
                privacy, which is new each time. It must not look at private
                data, and must not write anything: a file for each trial would
                tell their number.
            space: The prior of each setting. `batch_size`, `epochs`,
                `l2_norm_clip` and `learning_rate` are passed on to the
                training; `build` gets all settings. `batch_size` and `epochs`
                are a `Choice`, because each pair has noise of its own.
            data: As in `make_private`.
            score: From the trained model to its score, higher is better. A
                function looks at public data alone. Or a `PrivateScore`, whose
                cost is a part of each trial's.
            law: The law of the number of trials, of `keras_dp.ledger`.
            target_epsilon: The most epsilon that all rounds of the ledger may
                spend together, the search included, > 0.
            epochs: Number of epochs of a trial, >= 1, unless `space` has it.
            batch_size: Expected number of records in a sample, unless `space`
                has it, or `data` is a sampler.
            ledger: As in `make_private`.
            delta: In (0, 1), by default `N^-1.1` for N units.
            l2_norm_clip: As in `make_private`, unless `space` has it.
            learning_rate: As in `make_private`, unless `space` has it. By
                default the optimizer of the model keeps its own.
            average: As in `make_private`.
            run: As in `make_private`: the name of the search in the ledger, and
                the account that pays.
            debug: Whether the error of a trial is raised. It may tell of the
                data, so that the ledger then says that the search was not
                private. For public data, to find a mistake.
            verbose: Whether to print what was chosen, and what was found.

        Raises:
            TypeError: `space` is no dict of priors, `build` does not return a
                Keras model, or an argument is of another kind.
            PrivateTrainingError: The model has a step or a loss of its own.
            UnsupportedLayerError: A layer makes examples interact.
            CalibrationError: No noise meets the target.
            ValueError: An argument is out of its range, or models that `build`
                returns share what trains.
        """
        # One body: nothing is opened or priced before all else is checked.
        self._space = checked_space(space)
        _check.kind(TruncatedNegativeBinomial, law=law)
        checked_target(
            target_epsilon, default_delta(None) if delta is None else delta
        )
        _check.boolean(debug=debug, verbose=verbose)
        _check_functions(build, score)
        self._law, self._debug, self._verbose = law, debug, verbose
        records = Records.of(data, ledger)
        self._has_sampler = isinstance(records.data, Sampler)
        self._details = RunDetails.of(run)
        given = records.read()
        if isinstance(score, PrivateScore):
            _check_single_records(given.drawn_unit)
        self._ledger: PrivacyLedger = records.opened(ledger, given.drawn_unit)
        held = HeldRounds.asked(self._ledger, given, target_epsilon, delta)
        self.target = held.target
        lengths = _checked_epochs(values_of(self._space, "epochs", epochs))
        sizes = values_of(self._space, "batch_size", batch_size)
        for size in sizes:
            given.check_size(size)
        samples = {
            size: sampler_of(given, size, max(lengths), held) for size in sizes
        }
        _check_alike(samples.values())
        defaults = {
            "batch_size": batch_size,
            "epochs": epochs,
            "l2_norm_clip": l2_norm_clip,
            "learning_rate": learning_rate,
        }
        self._trials = Trials(
            build,
            samples,
            score,
            self._ledger.header.unit,
            defaults,
            average,
            self.target.delta,
        )
        # Trials name their layers like this first one.
        self._names = name_counts()
        name = self._first_model()
        self.noise_multipliers = self._calibrated(
            list(itertools.product(sizes, lengths)), held
        )
        self.selection = self._selection(self.noise_multipliers)
        if debug:
            plans = [(*plan, (_ERRORS, 1)) for plan in self.selection.plans]
            self.selection = Selection(tuple(plans), law)
        if verbose:
            print_line(self._summary(name, held))

    def _first_model(self) -> str:
        """Returns the name of a model, if another one is apart from it."""
        settings = drawn(self._space, uniform)
        model = self._trials.built(settings)
        with like_the_first(self._names):
            self._trials.check_apart(model, settings)
        return str(model.name)

    @property
    def round(self) -> Round:
        """The round that the ledger will hold, such as for a `FixedPlan`."""
        return self.selection.round

    @functools.cached_property
    def cost(self) -> SearchCost:
        """The price of the search, beside one trial and beside composition."""
        times = math.ceil(round(self._law.largest_mean, 6))
        plans = self.selection.plans
        if self._debug:
            plans = tuple(plan[:-1] for plan in plans)
        return SearchCost(
            self._epsilon([(self.round, 1)]),
            max(self._epsilon(plan) for plan in plans),
            max(
                self._epsilon([(each, n * times) for each, n in plan])
                for plan in plans
            ),
        )

    def run(self, *, rehearsal: bool = True) -> Found | None:
        """Searches, and returns the best trial.

        The number of trials, which nobody learns, decides how long it takes.

        Args:
            rehearsal: Whether to run one round on made-up records first, so
                that mistakes show that have nothing to do with the data. The
                errors of trials are withheld. With a sampler there is none.

        Returns:
            The best model, its settings and its score. `None` if no trial
            had a finite score.

        Raises:
            BudgetExceededError: The target or the account leaves no room for
                the search.
            LedgerWriteError: The ledger cannot be written.
            PrivateTrainingError: A trial failed, or would. Why and when is
                withheld, and there is no result.
            ValueError: Labels or ids are out of range. Nothing is recorded.
        """
        if rehearsal and not self._has_sampler:
            with silenced(), like_the_first(self._names):
                rehearse(self._trials, drawn(self._space, uniform))
        if self._debug:
            self._record()
            best = best_of(self._law, self._trial)
        else:
            self._check_records()
            self._record()
            best = self._secretly(lambda: best_of(self._law, self._trial))
        if best is not None:
            warn_of_other_ledgers(best.model, self._ledger)
        if self._verbose:
            print_line(_told(best))
        return best

    def _secretly(self, function: Callable[[], _Result]) -> _Result:
        # Once around all trials: no trial leaves what one trial leaves.
        with silenced(), like_the_first(self._names):
            return withheld(function, _failed())

    def _check_records(self) -> None:
        """Raises if a record would make a trial fail, drawn or not."""
        settings = drawn(self._space, uniform)
        fault = self._secretly(lambda: fault_of_records(self._trials, settings))
        if fault is not None:
            raise fault

    def _trial(self) -> Found:
        with like_the_first(self._names):
            settings = drawn(self._space, uniform)
            noise = self.noise_multipliers[self._trials.kind_of(settings)]
            model, score = self._trials.run(settings, noise)
        return Found(model, settings, score)

    def _record(self) -> None:
        """Writes the whole run of the search into the ledger, and ends it.

        A row that is written later would tell the time that the trials took.
        The ledger may hold more than when the noise was found.
        """
        limit = None  # With errors that are shown, no epsilon is finite.
        if not self._debug:
            limit = EpsilonLimit(self.target, self._ledger, most=1)
        with new_run(
            self._ledger,
            self._details,
            name="search",
            most=1,
            epsilon_limit=limit,
            delta=self.target.delta,
        ) as run:
            run.cover(self.round)

    def _selection(
        self, noise_multipliers: Mapping[tuple[Any, int], float]
    ) -> Selection:
        plans = tuple(
            self._trials.plan(size, epochs, noise)
            for (size, epochs), noise in noise_multipliers.items()
        )
        return Selection(plans, self._law)

    def _calibrated(
        self, kinds: list[tuple[Any, int]], held: HeldRounds
    ) -> dict[tuple[Any, int], float]:
        """Returns the least noise of each kind of trial that meets the target.

        Each kind first gets the noise at which its training alone would meet
        the target. All of them are then multiplied by one factor.
        """
        base = {
            (size, epochs): calibrate_scale(
                functools.partial(self._trials.training, size, epochs),
                target_epsilon=self.target.epsilon,
                delta=self.target.delta,
            )
            for size, epochs in kinds
        }

        def scaled(factor: float) -> dict[tuple[Any, int], float]:
            return {
                kind: rounded_scale(noise * factor)
                for kind, noise in base.items()
            }

        more = ""
        if isinstance(self._trials.score, PrivateScore):
            more = " The score keeps the noise that it has: give more."
        with held.explaining(more):
            factor = calibrate_scale(
                lambda factor: [(self._selection(scaled(factor)).round, 1)],
                precision=_PRECISION,
                **held.terms,
            )
        return scaled(factor)

    def _epsilon(self, rounds: Any) -> float:
        replay = Replay(rounds, header=self._ledger.header)
        return replay.claim(delta=self.target.delta).epsilon

    def _summary(self, name: str, held: HeldRounds) -> str:
        noise = sorted(self.noise_multipliers.values())
        amounts = f"noise multiplier {rounded_up(noise[0])}"
        if len(noise) > 1:
            amounts = (
                f"noise multipliers {rounded_up(noise[0])} to "
                f"{rounded_up(noise[-1])}"
            )
        what = self.selection.words.partition(": ")[2]
        return (
            f"Private search of {name!r}: {what}, {amounts}. Settings: "
            f"{', '.join(self._space)}. Target: epsilon "
            f"{self.target.epsilon:g} at delta = {self.target.delta:.3g}, for "
            f"all rounds of the ledger {held.place}, which holds "
            f"{held.sentence}"
        )


def _failed() -> PrivateTrainingError:
    return PrivateTrainingError(
        "`build`, `score` and `data` must let each trial run to its end. "
        "Received: an error, which is withheld, since it may tell of a record. "
        "The search has ended without a result; what the ledger holds of it "
        "counts. Search on public or made-up data to see the error, or with "
        "debug=True."
    )


def _told(found: Found | None) -> str:
    if found is None:
        return "The search returned no model: no trial had a finite score."
    settings = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in found.settings.items()
    )
    return f"The best model has the score {found.score:.4g}, with {settings}."


def _check_functions(build: Any, score: Any) -> None:
    for name, function in {"build": build, "score": score}.items():
        is_score = name == "score" and isinstance(function, PrivateScore)
        if not callable(function) and not is_score:
            raise TypeError(
                f"`{name}` must be a function. "
                f"Received: {name}={_check.shown(function)}."
            )


def _check_single_records(drawn_unit: str) -> None:
    """Raises if a private score would count other units than a training."""
    if drawn_unit != "example":
        raise ValueError(
            "`score` must be a function where units of several records are "
            "drawn or capped: a unit's records would count in training and in "
            f"the score together. Received: a PrivateScore, and {drawn_unit}s. "
            "Score on public data. Or keep at most `rows_per_unit` records of "
            "each unit (keras_dp.sampling.users.capped_rows) before they are "
            "divided, and pass no ids."
        )


def _checked_epochs(lengths: tuple[Any, ...]) -> tuple[int, ...]:
    for epochs in lengths:
        if epochs is None:
            raise ValueError(
                "`epochs` must be given, here or in `space`. "
                "Received: epochs=None."
            )
        _check.integer_at_least(1, epochs=epochs)
    return lengths


def _check_alike(samples: Iterable[Sampler]) -> None:
    if any(len(each.planned(2)) > 1 for each in samples):
        raise ValueError(
            "`data` must draw all rounds alike: the plan of a trial has one "
            "kind of round. Received: a sampler whose rounds differ. Pass "
            "arrays, or a PoissonBatches."
        )
