"""One trial of a search, and what is tried out before the ledger holds it.

A trial is a private training in a ledger of its own. Its score may be that of
a model on private records, with noise.
"""

import dataclasses
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp import _check
from keras_dp.accountants.replay import replay_of
from keras_dp.budgets import FixedPlan, open_account
from keras_dp.keras_internals import layers_of
from keras_dp.ledger import (
    CountedRound,
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from keras_dp.preprocessing.columns import SUM_UNITS
from keras_dp.preprocessing.release import noised, released
from keras_dp.recipes.clip import choose_clip
from keras_dp.recipes.noise_for_target import rounds_at, with_noise
from keras_dp.recipes.private_training import (
    ANSWERS,
    assembled,
    compile_options,
    resolved,
)
from keras_dp.recipes.settings import Settings
from keras_dp.sampling import PoissonBatches, Sampler
from keras_dp.sampling.record_source import Source, as_arrays
from keras_dp.training import PrivateModel
from keras_dp.training.data.in_range import check_in_range
from keras_dp.training.private_model import check_kind

# The size and the noise of a training on made-up records.
_RECORDS, _NOISE_MULTIPLIER = 64, 1.0
# The account of a trial limits its rounds, and nothing else. A plan is paid for
# whatever the clip is.
_ANY_EPSILON, _ANY_CLIP = 1e300, 1.0


class PrivateScore:
    """The mean of a measure over private records, with Gaussian noise.

    The records are a validation part that no trial trains on, or the training
    data themselves. One record is one example.

    Guarantee: adding or removing a record moves the sum of the values by at
    most 1; the noise has the standard deviation `noise_multiplier`. The number
    of records becomes public. A record may be among the training data and here:
    both count. One unit has at most as many records in both together as
    `rows_per_unit` of the ledger says.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum, > 0, in
            records: with 20, the mean over 5,000 records has the standard
            deviation 0.004.
        round: The round of one score, as ledgers hold it.

    >>> x, y = np.zeros([50, 3], "float32"), np.zeros([50, 1], "int32")
    >>> score = PrivateScore((x, y), keras.metrics.binary_accuracy,
    ...                      noise_multiplier=20.0)
    >>> score.round.queries
    (GaussianSum(name='score', l2_norm_bound=1.0, noise_stddev=20.0),)
    """

    def __init__(
        self,
        data: Any,
        measure: Callable[[Any, Any], Any],
        *,
        noise_multiplier: float,
    ) -> None:
        """Looks at the shapes of the data.

        Args:
            data: `(x, y)`, arrays or nests of arrays of equal length.
            measure: From targets and outputs of a batch to values `[batch]` or
                `[batch, ...]`, higher is better, such as
                `keras.metrics.sparse_categorical_accuracy`. Values are cut to
                [0, 1], one that is no number counts as 0, and an example has
                the mean of its values.
            noise_multiplier: See above.

        Raises:
            TypeError: `data` is no pair of arrays, or `measure` no function.
            ValueError: There are no records, or there is no noise.
        """
        _check.finite_positive(noise_multiplier=noise_multiplier)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(
                f"`data` must be (x, y). Received: data={_check.shown(data)}."
            )
        if not callable(measure) or isinstance(measure, keras.metrics.Metric):
            raise TypeError(
                "`measure` must be a function of targets and outputs, such as "
                "keras.metrics.sparse_categorical_accuracy. "
                f"Received: measure={measure!r}."
            )
        self._x, self._y = as_arrays(tuple(data))
        self._size = len(Source((self._x, self._y)))
        self._measure = measure
        self.noise_multiplier = float(noise_multiplier)
        self.round = Round(
            FullDataset(drawn_by_library=True),
            (GaussianSum("score", 1.0, self.noise_multiplier),),
        )

    def on_made_up(self, made_up: Callable[[Any], Any]) -> Self:
        """Returns the same score of records made from the structure of one."""
        records = made_up(Source((self._x, self._y)).structure)
        noise = self.noise_multiplier
        return type(self)(records, self._measure, noise_multiplier=noise)

    def release(self, model: keras.Model, ledger: PrivacyLedger) -> float:
        """Returns the score of a model, which the ledger covers before.

        Args:
            model: Its outputs for a record depend on this record alone.
            ledger: Records the round.
        """
        return released(
            ledger, self.round, lambda: self._noisy_mean(model), "score"
        )

    def total(self, model: keras.Model) -> float:
        """Returns the sum of the values of all records, without noise.

        Raises:
            ValueError: The measure has no value for each example.
        """
        outputs = model.predict(self._x, verbose=0)
        values = np.asarray(self._measure(self._y, outputs), np.float64)
        if values.shape[:1] != (self._size,) or not values.size:
            raise ValueError(
                "`measure` must return a value for each example. Received: "
                f"shape {values.shape} for {self._size} examples. Use a "
                "function that does not take the mean over examples."
            )
        kept = np.clip(np.nan_to_num(values, nan=0.0), 0.0, 1.0)
        kept = kept.reshape(self._size, -1).mean(axis=1)
        # Sums of whole numbers are exact, in any order.
        return float(np.sum(np.rint(kept * SUM_UNITS)) / SUM_UNITS)

    def _noisy_mean(self, model: keras.Model) -> float:
        total = self.total(model)
        return (
            float(noised(np.asarray(total), self.noise_multiplier)) / self._size
        )


Score: TypeAlias = Callable[[keras.Model], float] | PrivateScore


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """The common part of all trials of a search.

    `samples` has the sampler of each batch size. The `defaults` are the batch
    size, the epochs, the clip and the learning rate of trials whose settings do
    not have them.
    """

    build: Callable[[dict[str, Any]], keras.Model]
    samples: Mapping[int | None, Sampler]
    score: Score
    unit: str
    defaults: Mapping[str, Any]
    average: Literal["auto"] | None
    delta: float

    def plan(
        self, batch_size: int | None, epochs: int, noise_multiplier: float
    ) -> tuple[CountedRound, ...]:
        """Returns the most that a trial does: its training and its score."""
        plan = self.training(batch_size, epochs, noise_multiplier)
        if isinstance(self.score, PrivateScore):
            return (*plan, CountedRound(self.score.round, 1))
        return plan

    def training(
        self, batch_size: int | None, epochs: int, noise_multiplier: float
    ) -> tuple[CountedRound, ...]:
        """Returns the rounds of `plan` that train."""
        asked = Settings(
            None,
            {},
            epochs=epochs,
            samples=self.samples[batch_size],
            l2_norm_clip=_ANY_CLIP,
        )
        rounds = rounds_at(asked, noise_multiplier)
        return tuple(CountedRound(*each) for each in rounds)

    def kind_of(self, settings: Mapping[str, Any]) -> tuple[int | None, int]:
        """Returns what decides on the plan: the batch size and the epochs."""
        chosen = self._of_training(settings)
        return chosen["batch_size"], chosen["epochs"]

    def _of_training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: settings.get(name, default)
            for name, default in self.defaults.items()
        }

    def built(self, settings: Mapping[str, Any]) -> keras.Model:
        """Returns a model that can be trained privately."""
        model = self.build(dict(settings))
        if isinstance(model, PrivateModel):
            raise TypeError(
                "`build` must return the model without privacy: each trial is "
                "made private in a ledger of its own, which the row of the "
                f"search covers. Received: {model!r}. Return the model before "
                "make_private."
            )
        check_kind(model, releases_statistics=False)
        compile_options(model)
        return model

    def check_apart(
        self, model: keras.Model, settings: Mapping[str, Any]
    ) -> None:
        """Raises unless a second model of equal settings is apart from a first.

        A model that goes on from one trial to the next is trained more often
        than its trial says. Frozen layers can be shared: they do not change.
        """
        again = self.built(settings)
        frozen = {
            id(weight)
            for layer in layers_of(again)
            if not layer.trainable
            for weight in layer.weights
        }
        own = {id(each) for each in model.variables} - frozen
        shared = [each for each in again.variables if id(each) in own]
        if again is model or again.optimizer is model.optimizer:
            raise _not_apart("the same model or optimizer twice")
        if shared:
            raise _not_apart(f"two models that share {shared[0].path!r}")

    def run(
        self, settings: Mapping[str, Any], noise_multiplier: float
    ) -> tuple[keras.Model, float]:
        """Returns a trained model and its score.

        Guarantee: no round runs that is not in the plan. All rounds are charged
        to an account with this plan in a new ledger in memory, which nobody
        else sees.
        """
        plan = self.plan(*self.kind_of(settings), noise_multiplier)
        ledger = self._ledger(plan)
        private = self.private(settings, noise_multiplier, ledger)
        private.fit(verbose=0, delta=self.delta)
        model = private.model
        if isinstance(self.score, PrivateScore):
            return model, self.score.release(model, ledger)
        return model, float(self.score(model))

    def private(
        self,
        settings: Mapping[str, Any],
        noise_multiplier: float,
        ledger: PrivacyLedger,
    ) -> PrivateModel:
        """Returns a new model that trains as a trial does."""
        chosen = self._of_training(settings)
        model = self.built(settings)
        asked = Settings(
            model,
            compile_options(model),
            samples=self.samples[chosen["batch_size"]],
            average=self.average,
            **chosen,
        )
        found = with_noise(choose_clip(asked), noise_multiplier)
        return assembled(resolved(found, ANSWERS), ledger)

    def _ledger(self, plan: tuple[CountedRound, ...]) -> PrivacyLedger:
        """Returns a new ledger, whose account pays for a plan and no more."""
        ledger = PrivacyLedger.in_memory(dataset="of one trial", unit=self.unit)
        relation = replay_of(plan).relation(None)
        budget = FixedPlan(plan, _ANY_EPSILON, self.delta, relation)
        open_account(ledger, "trial", budget)
        return ledger


def _not_apart(received: str) -> ValueError:
    return ValueError(
        "`build` must make a new model each time: a trial must not go on where "
        f"another one ended. Received: {received}. Make all layers and the "
        "optimizer inside `build`; layers from outside must be frozen "
        "(`layer.trainable = False`) and without dropout."
    )


def rehearse(trials: Trials, settings: Mapping[str, Any]) -> None:
    """Trains for one round on made-up records, and scores the model.

    Numbers with a point are random in [0, 1), all others are 0. What comes out
    is dropped: it shows only whether model, loss and score go together. So an
    error tells nothing of the data.
    """
    score = trials.score
    if isinstance(score, PrivateScore):
        score = score.on_made_up(_made_up)
    size, _ = trials.kind_of(settings)
    short = dataclasses.replace(
        trials,
        samples={
            size: PoissonBatches(
                _made_up(trials.samples[size].records.structure),
                sampling_probability=0.5,
                rounds_per_epoch=1,
                map=trials.samples[size].map,
            )
        },
        score=score,
        defaults={**trials.defaults, "epochs": 1},
    )
    short.run(settings, _NOISE_MULTIPLIER)


def fault_of_records(
    trials: Trials, settings: Mapping[str, Any]
) -> ValueError | None:
    """Evaluates an untrained model on every record that trials may see.

    In a trial a record that raises would decide how the search ends, and it
    would do so as often as it is drawn. What comes out is dropped. The result
    says whether labels or ids are out of range, and is `None` if none are;
    whatever else a record causes is raised.
    """
    ledger = PrivacyLedger.in_memory(dataset="none", unit=trials.unit)
    private = trials.private(settings, _NOISE_MULTIPLIER, ledger)
    try:
        private.evaluate(private.settings.samples, verbose=0)
        if isinstance(trials.score, PrivateScore):
            trials.score.total(private.model)
    except tf.errors.InvalidArgumentError as error:
        try:
            check_in_range(error)
        except ValueError as fault:
            return ValueError(str(fault))  # Without the text of the first one.
        raise
    return None


def _made_up(structure: Any) -> Any:
    def leaf(spec: Any) -> npt.NDArray[Any]:
        shape = (_RECORDS, *spec.shape)
        if spec.dtype.kind != "f":
            return np.zeros(shape, spec.dtype)
        words = secrets.token_bytes(4 * math.prod(shape))
        values = np.frombuffer(words, np.uint32).reshape(shape) / 2.0**32
        return values.astype(spec.dtype)

    return keras.tree.map_structure(leaf, structure)
