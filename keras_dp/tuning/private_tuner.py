"""A private search under the interfaces of KerasTuner."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_dp import _check
from keras_dp._override import override
from keras_dp.keras_internals import print_line
from keras_dp.ledger import TrialLaw
from keras_dp.tuning.best_of import uniform
from keras_dp.tuning.priors import Choice, Prior
from keras_dp.tuning.private_search import Found, PrivateSearch
from keras_dp.tuning.trials import Score

# A plan depends on these: all of their values must be known.
_COUNTED = ("batch_size", "epochs")
_FINITE = ("Choice", "Fixed", "Boolean")


class _OfHyperParameter(Prior):
    """The distribution that KerasTuner gives a hyperparameter."""

    __slots__ = ("_parameter",)

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    @override
    def value(self, uniform: float) -> Any:
        return self._parameter.prob_to_value(uniform)


class PrivateTuner:
    """Runs a `PrivateSearch` for a script of KerasTuner.

    It takes the place of `keras_tuner.RandomSearch`. Hyperparameters are drawn
    as there, from their ranges alone. `hp.Choice("batch_size", ...)` and
    `hp.Choice("epochs", ...)` in the model set those of the training, and so do
    `l2_norm_clip` and `learning_rate`. Nothing is written for a trial, and
    nothing is shown of it. It is no subclass of `keras_tuner.Tuner`, which
    keeps a folder for each trial.

    Guarantee: as `PrivateSearch`.

    Source: of the interface, KerasTuner 1.4.
    """

    def __init__(
        self,
        hypermodel: Any,
        objective: Any = None,
        *,
        law: TrialLaw,
        target_epsilon: float,
        score: Score | None = None,
        **options: Any,
    ) -> None:
        """Looks at no data.

        Args:
            hypermodel: A function from `keras_tuner.HyperParameters` to a
                compiled model, or a `HyperModel` with such a `build`.
            objective: Name of a metric of public validation data, such as
                "val_accuracy", or a `keras_tuner.Objective`.
            law: As in `PrivateSearch`.
            target_epsilon: As in `PrivateSearch`.
            score: As in `PrivateSearch`, in place of `objective`, which then
                is `None`: for a `PrivateScore`.
            **options: Further arguments of `PrivateSearch`, such as `ledger`.

        Raises:
            ImportError: KerasTuner is not installed.
            TypeError: `hypermodel` is something else, such as a tuner whose
                trials depend on the results of others, or has a `fit` of its
                own.
            ValueError: Not exactly one of `objective` and `score` is given, or
                `objective` is no metric of validation data.
        """
        tuner = _keras_tuner()
        self._build = _build_of(hypermodel, tuner)
        if (objective is None) == (score is None):
            raise ValueError(
                "Exactly one of `objective` and `score` must be given. "
                f"Received: objective={objective!r}, "
                f"score={_check.shown(score)}. "
                'Pass objective="val_accuracy", for instance.'
            )
        self._objective = None
        if objective is not None:
            self._objective = tuner.oracles.RandomSearchOracle(
                objective=objective
            ).objective
            name = getattr(self._objective, "name", "")
            if not name.startswith("val_"):
                raise ValueError(
                    "`objective` must be a metric of validation data, whose "
                    'name begins with "val_": metrics of the training data '
                    f"have no noise. Received: objective={objective!r}. Take a "
                    "PrivateScore (`score=`) to score on private data."
                )
        self._score, self._law, self._target = score, law, target_epsilon
        self._options = options
        self._space = self._found_space()
        self._values: weakref.WeakKeyDictionary[keras.Model, Any] = (
            weakref.WeakKeyDictionary()
        )
        self._best: Found | None = None

    def search(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        validation_data: Any = None,
        callbacks: Any = None,
        verbose: Any = True,
    ) -> None:
        """Searches once, as `PrivateSearch.run` does.

        Args:
            x: As the data of `make_private`.
            y: Targets, if `x` is an array.
            epochs: As in `make_private`, if no hyperparameter says so.
            batch_size: As in `make_private`, if no hyperparameter says so.
            validation_data: `(x, y)` of public records, for the objective.
            callbacks: None: they would see each trial.
            verbose: Whether to print what was chosen, and what was found.

        Raises:
            ValueError: There are callbacks, or no data for the objective.
        """
        if callbacks:
            raise ValueError(
                "`callbacks` must be None: they would write or show something "
                f"for each trial. Received: {_check.shown(callbacks)}. Train "
                "on with the best model to use them."
            )
        if self._objective is not None and validation_data is None:
            raise ValueError(
                "`validation_data` must be given for an objective. Received: "
                "validation_data=None. Pass public records, or a PrivateScore "
                "(`score=`) to the tuner."
            )
        score: Score | None = self._score
        if score is None:
            score = self._score_on(validation_data)
        search = PrivateSearch(
            self._built,
            self._space,
            x if y is None else (x, y),
            score,
            law=self._law,
            target_epsilon=self._target,
            epochs=epochs,
            batch_size=batch_size,
            verbose=bool(verbose),
            **self._options,
        )
        try:
            self._best = search.run()
        finally:
            # A model of another trial would tell how many trials ran.
            best = None if self._best is None else self._best.model
            for model in list(self._values):
                if model is not best:
                    del self._values[model]

    def get_best_models(self, num_models: int = 1) -> list[keras.Model]:
        """Returns the best model in a list, or an empty list.

        Args:
            num_models: 1, for no other model is released.
        """
        _check_one(num_models=num_models)
        return [] if self._best is None else [self._best.model]

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[Any]:
        """Returns the best `HyperParameters` in a list, or an empty list.

        Args:
            num_trials: 1, for no other trial is released.
        """
        _check_one(num_trials=num_trials)
        if self._best is None:
            return []
        return [self._values[self._best.model]]

    def search_space_summary(self) -> None:
        """Prints the names of the hyperparameters."""
        print_line(f"Search space: {', '.join(self._space)}.")

    def results_summary(self) -> None:
        """Prints the best trial, the only one that there is to see."""
        if self._best is None:
            print_line("There is no model.")
            return
        print_line(f"Score (higher is better): {self._best.score:.6g}")
        for name, value in self._values[self._best.model].values.items():
            print_line(f"{name}: {value}")

    def _found_space(self) -> dict[str, Prior]:
        """Returns the hyperparameters that a first model asks for."""
        values = _keras_tuner().HyperParameters()
        self._build(values)
        return {each.name: _prior(each) for each in values.space}

    def _built(self, settings: Mapping[str, Any]) -> keras.Model:
        """Returns a model of drawn hyperparameters.

        Those that only some models ask for are drawn when they are asked for.
        """
        values = _keras_tuner().HyperParameters()
        values.values.update(settings)
        known = set(settings)
        while True:
            model = self._build(values)
            new = [each for each in values.space if each.name not in known]
            if not new:
                values.values = {
                    name: value
                    for name, value in values.values.items()
                    if values.is_active(name)
                }
                self._values[model] = values
                return model
            for each in new:
                values.values[each.name] = each.prob_to_value(uniform())
                known.add(each.name)

    def _score_on(self, data: Any) -> Callable[[keras.Model], float]:
        objective: Any = self._objective
        metric = objective.name.removeprefix("val_")
        sign = 1.0 if objective.direction == "max" else -1.0

        def score(model: keras.Model) -> float:
            found = model.evaluate(*data, verbose=0, return_dict=True)
            return sign * float(found[metric])

        return score


def _keras_tuner() -> Any:
    with _check.needing("KerasTuner", "for PrivateTuner", "tuner"):
        import keras_tuner
    return keras_tuner


def _build_of(hypermodel: Any, tuner: Any) -> Callable[[Any], Any]:
    """Returns the function from hyperparameters to a model.

    Raises:
        TypeError: As `PrivateTuner`.
    """
    if isinstance(hypermodel, (tuner.Oracle, tuner.Tuner)):
        raise TypeError(
            "`hypermodel` must be a function or a HyperModel: Bayesian "
            "optimization and Hyperband choose a trial by the results of "
            "others, and for that no price is known. Received: "
            f"{type(hypermodel).__name__}. Pass what builds the model."
        )
    if isinstance(hypermodel, tuner.HyperModel):
        if type(hypermodel).fit is not tuner.HyperModel.fit:
            raise TypeError(
                "`hypermodel` must not have a `fit` of its own: trials are "
                "trained privately, by the fit of a PrivateModel. Received: "
                f"{type(hypermodel).__name__}. Choose the batch size by "
                'hp.Choice("batch_size", ...) in `build`.'
            )
        return hypermodel.build  # type: ignore[no-any-return]
    if not callable(hypermodel):
        raise TypeError(
            "`hypermodel` must be a function or a HyperModel. "
            f"Received: hypermodel={_check.shown(hypermodel)}."
        )
    return hypermodel  # type: ignore[no-any-return]


def _prior(parameter: Any) -> Prior:
    if parameter.name not in _COUNTED:
        return _OfHyperParameter(parameter)
    kind = type(parameter).__name__
    if kind not in _FINITE:
        raise ValueError(
            f"{parameter.name!r} must be an hp.Choice or hp.Fixed: each of its "
            "values has a plan of its own, and the price is for all of these "
            f"plans. Received: an hp.{kind}."
        )
    return Choice(parameter.values)


def _check_one(**named: int) -> None:
    for name, value in named.items():
        if value != 1:
            raise ValueError(
                f"`{name}` must be 1: a private search releases the best "
                f"trial, and nothing of the others. Received: {name}={value!r}."
            )
