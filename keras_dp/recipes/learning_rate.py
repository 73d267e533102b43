"""The learning rate at which noise alone moves weights by a good distance.

A private answer is a mean gradient plus noise. In all rounds the noise takes
each weight for a random walk. Its length is the root of the mean square of what
it moves a weight, and grows with the learning rate. If it is too short, the
signal moved weights less than it could, too. If it is too long, it hides what
was learned. Networks of 600 to 700,000 weights were at their best at a walk
near `2 / weights**(1/4)`, whatever the optimizer, the batch and the noise were
(docs/choosing.md).

How far an optimizer walks is not derived for each kind of optimizer. It is
measured: a copy of the optimizer, with its schedule, momentum and all, is given
answers without data.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp._override import override
from keras_dp.dp_queries import GaussianAverageQuery
from keras_dp.keras_internals import (
    compile_arguments_of,
    fresh_copy_of,
    layers_of,
    learning_rate_of,
    optimizers_in,
)
from keras_dp.optimizers.inner_optimizer import check_inner, is_closed
from keras_dp.recipes.clip import is_one_of, positions_of
from keras_dp.recipes.settings import Settings
from keras_dp.recipes.training_data import build_for_records
from keras_dp.sampling import Sampler
from keras_dp.training.data.record_map import RecordMap

# These were measured by benchmarks/first_run.py (docs/choosing.md). The walk of
# a weight is `_WALK * weights**(-1/4)`, at most `_LONGEST_WALK`.
_WALK, _LONGEST_WALK = 2.0, 0.3
# Tables of embeddings begin with small entries, and must leave them: networks
# on top of tables walk further.
_LONGEST_ON_TABLES = 0.6
# A record that is to be reproduced says more than a label: where it has so many
# numbers as targets, this is the walk. SGD then diverged, and keeps `_WALK`.
_MANY_TARGETS, _WALK_TO_MANY = 64, 3.2
# So does one of classes at many positions, such as the words of a text: times
# the fourth root of their number, at most twice.
_FOR_POSITIONS = 2.0
# In tables whose rows are averaged, weak signals get a longer walk: times
# sqrt(10,000 / signal), between 1 and 2.
_CLEAR_SIGNAL, _WHERE_AVERAGED = 10_000.0, 2.0
# The norm of a mean gradient over the clip, in the first rounds.
_SIGNAL = 0.5
# A strong signal never makes the step of a classifier shorter than 1.0. Steps
# above 5.0 diverged.
_SAFE_STEP, _LONGEST_STEP = 1.0, 5.0
# Losses whose gradient by an output is at most 1, however large the output is.
_OF_CLASSIFIERS = (
    keras.losses.BinaryCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.Hinge,
    keras.losses.binary_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.hinge,
)
# A rate below this share of the first one trains nothing.
_IDLE = 1e-3
# A walk is that of weights `[side, side]`, which begin with this deviation. It
# is measured for so many rounds; further ones lengthen it by the root.
_SIDE, _INITIAL, _MOST_ROUNDS = 64, 0.05, 5_000
# An average is over about so many parts of a training: the last tenth.
_PARTS = 10
# How close a walk comes to the one that is wanted, after how many tries, and
# with how many digits of the rate.
_CLOSE, _MOST_TRIES, _DIGITS = 0.1, 12, 2


class Weights(NamedTuple):
    """Numbers of trained weights, in tables of embeddings and elsewhere.

    An example touches few rows of a table of embeddings, so that its many
    weights do not amplify the noise as those of a kernel do.

    Attributes:
        averages: Whether a layer averages rows of a table along a sequence,
            such as those of the words of a text.
    """

    in_tables: int
    others: int
    averages: bool = False


class ChosenRate(NamedTuple):
    """A learning rate, and why.

    Attributes:
        rate: A number, or the schedule of the script times a factor.
        factor: The rate over that of the script.
        walk: How far noise alone moves a weight in all rounds, as the root of
            the mean square.
        stretch: The steps of the schedule over those of the script.
    """

    rate: Any
    factor: float
    walk: float
    rounds: int
    stretch: float = 1.0

    @property
    def value(self) -> str:
        """The rate, for a person."""
        if isinstance(self.rate, float):
            return f"{self.rate:g}, {self.factor:.3g} times the script's"
        return f"{self.factor:.3g} times the schedule of the script"

    @property
    def reason(self) -> str:
        """Why, for a person."""
        found = f"noise alone then moves a weight by {self.walk:.2g}"
        if self.stretch != 1:
            found += (
                "; the schedule ends with the training, in "
                f"{self.stretch:.3g} times its steps"
            )
        elif callable(self.rate):
            late = float(self.rate(3 * self.rounds // 4))
            if late <= _IDLE * float(self.rate(0)):
                found += "; it is next to 0 in the last quarter of the rounds"
        return found


@keras.saving.register_keras_serializable(package="keras_dp")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of learning rates, times a factor."""

    def __init__(self, schedule: Any, factor: float) -> None:
        super().__init__()
        self.schedule, self.factor = schedule, factor

    @override
    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.factor

    @override
    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "factor": self.factor}

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> "ScaledSchedule":
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["factor"])


def choose_learning_rate(settings: Settings) -> Settings:
    """Chooses the rate of an optimizer that is for this training alone."""
    wanted, optimizer = settings.learning_rate, settings.optimizer
    if wanted is None:
        is_chosen = isinstance(optimizer, keras.optimizers.Optimizer)
        wanted = "keep" if is_chosen else "auto"
    if optimizer is None:
        own = compile_arguments_of(settings.model)
        optimizer = own.get("optimizer", "adam")
    optimizer = keras.optimizers.get(optimizer)
    check_inner(optimizer, "optimizer")
    if wanted == "keep":
        return dataclasses.replace(settings, optimizer=_taken(optimizer, None))
    if wanted != "auto":
        if not _has_one_rate(optimizer):
            raise ValueError(
                '`learning_rate` must be "keep" for an optimizer that holds '
                "others, each with a rate of its own. Received: "
                f"{type(optimizer).__name__}. Set their rates."
            )
        taken = _taken(optimizer, wanted)
        return dataclasses.replace(settings, optimizer=taken)
    model, compiled = settings.model, settings.compiled
    eagerly = compiled.get("run_eagerly", False)
    build_for_records(model, settings.samples, eagerly=eagerly)
    found = chosen_rate(
        optimizer,
        settings.queries.gradients,
        settings.rounds,
        trained_weights(model),
        compiled["loss"],
        numbers_to_reproduce(settings.samples),
        positions_of(compiled["loss"], model),
    )
    if found is None:
        name = type(optimizer).__name__
        value = "kept"
        reason = f"{name} has no one number or schedule of steps"
    else:
        decays = "; weight decay follows it" if optimizer.weight_decay else ""
        value = found.value
        reason = f'{found.reason}{decays}; "keep" does not change it'
    taken = _taken(optimizer, None if found is None else found.rate)
    return settings.with_choice("learning rate", value, reason, optimizer=taken)


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


def choose_average(settings: Settings) -> Settings:
    """Makes an optimizer average the weights, unless it does so anyway.

    It is a moving average over about the last tenth of the rounds: weights of
    `k` rounds ago count `(1 - 10 / rounds)**k` as much as the last ones.
    """
    optimizer, rounds = settings.optimizer, settings.rounds
    averages = any(each.use_ema for each in optimizers_in(optimizer))
    if settings.average is None or averages:
        return settings
    optimizer.use_ema = True
    optimizer.ema_momentum = max(0.0, 1 - _PARTS / rounds)
    optimizer.ema_overwrite_frequency = None
    return settings.with_choice(
        "average",
        f"of the weights of about {max(1, round(rounds / _PARTS)):,} rounds",
        "average=None takes the last",
    )


def chosen_rate(
    optimizer: keras.optimizers.Optimizer,
    query: GaussianAverageQuery,
    rounds: int,
    weights: Weights,
    loss: Any = None,
    targets: int = 1,
    positions: int = 1,
) -> ChosenRate | None:
    """Returns the learning rate that suits the noise of a training.

    It depends on nothing but these arguments, which are public: a training that
    goes on in another process has the same. It is `None` if the optimizer has
    no one rate, or if no rate lets noise walk as far as is wanted.
    """
    own = scripts_rate(optimizer)
    if own is None:
        return None
    classifies = is_one_of(loss, _OF_CLASSIFIERS)
    reproduces = targets >= _MANY_TARGETS and not (
        classifies or isinstance(optimizer, keras.optimizers.SGD)
    )
    wanted = _wanted_walk(query, rounds, weights, reproduces)
    wanted *= min(positions**0.25, _FOR_POSITIONS)
    stddev = _size_of_answers(query, rounds, weights, wanted, classifies)
    stretch = 1.0
    if callable(own):
        own, stretch = ending_with(own, rounds)
    rate, factor, low, high = own, 1.0, 0.0, math.inf
    # For most optimizers the first factor is right. Others look at the weights.
    for _ in range(_MOST_TRIES):
        try:
            walked = walk(optimizer, stddev, rounds, rate)
        except Exception:  # noqa: BLE001 - it may ask for weights of the model.
            return None
        if abs(walked / wanted - 1) < _CLOSE:
            return ChosenRate(rate, factor, wanted, rounds, stretch)
        if walked == 0:
            return None
        low, high = (factor, high) if walked < wanted else (low, factor)
        factor *= wanted / walked
        if not low < factor < high:  # The walk is no multiple of the rate.
            factor = math.sqrt(low * high) if low else high / 10
        if callable(own):
            factor = _rounded(factor)
            rate = ScaledSchedule(own, factor)
        else:
            rate = _rounded(own * factor)
            factor = rate / own
    return None


def _wanted_walk(
    query: GaussianAverageQuery, rounds: int, weights: Weights, reproduces: bool
) -> float:
    on_tables = weights.others and weights.in_tables
    longest = _LONGEST_ON_TABLES if on_tables else _LONGEST_WALK
    walk_of_one = _WALK_TO_MANY if reproduces else _WALK
    wanted = min(longest, walk_of_one / max(1, weights.others) ** 0.25)
    if weights.averages and 0 < weights.others < weights.in_tables:
        each = query.noise_multiplier / query.denominator
        hidden = math.sqrt(_CLEAR_SIGNAL * each / math.sqrt(rounds))
        wanted *= min(max(hidden, 1.0), _WHERE_AVERAGED)
    return wanted


def _size_of_answers(
    query: GaussianAverageQuery,
    rounds: int,
    weights: Weights,
    wanted: float,
    classifies: bool,
) -> float:
    """Returns the deviation of an entry of an answer, by noise and signal."""
    clip = 1.0 if query.rescale else query.l2_norm_clip
    noise = clip * query.noise_multiplier / query.denominator
    step = wanted * clip / math.sqrt(rounds)  # At which a step is 1 long.
    signal = _SIGNAL * clip / math.sqrt(max(1, weights.others))
    if classifies:
        signal = min(signal, step / _SAFE_STEP)
    return max(math.hypot(noise, signal), step / _LONGEST_STEP)


def scripts_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns the learning rate of an optimizer as a number or a schedule.

    It is `None` for another function, for 0, and where optimizers inside have
    rates of their own.
    """
    if not _has_one_rate(optimizer):
        return None
    rate = learning_rate_of(optimizer)
    if callable(rate):
        schedules = keras.optimizers.schedules.LearningRateSchedule
        return rate if isinstance(rate, schedules) else None
    return float(keras.ops.convert_to_numpy(rate)) or None


def _has_one_rate(optimizer: keras.optimizers.Optimizer) -> bool:
    one = len(optimizers_in(optimizer)) == 1
    return one and hasattr(optimizer, "learning_rate")


def ending_with(schedule: Any, rounds: int) -> tuple[Any, float]:
    """Returns a schedule that ends with a training, and how it was stretched.

    The script has other rounds: where a schedule ends before the training, the
    rounds that are left train nothing. One that does not say where it ends
    stays as it is, as does one of a class that is not of Keras.
    """
    schedules, kind = keras.optimizers.schedules, type(schedule)
    if kind not in (
        schedules.CosineDecay,
        schedules.PolynomialDecay,
        schedules.PiecewiseConstantDecay,
    ):
        return schedule, 1.0
    config = schedule.get_config()
    if kind is schedules.CosineDecay:
        if config["warmup_target"] is None:  # Then there is no warmup.
            config["warmup_steps"] = 0
        stretch = rounds / (config["warmup_steps"] + config["decay_steps"])
    elif kind is schedules.PolynomialDecay:
        if config["cycle"]:
            return schedule, 1.0
        stretch = rounds / config["decay_steps"]
    else:
        # The last piece is taken to be as long as the others are on average.
        pieces = config["boundaries"]
        if pieces[-1] <= 0:
            return schedule, 1.0
        stretch = rounds / (pieces[-1] * (1 + 1 / len(pieces)))
        config["boundaries"] = [x * stretch for x in pieces]
    for name in {"warmup_steps", "decay_steps"} & config.keys():
        config[name] *= stretch
    return kind.from_config(config), stretch


def numbers_to_reproduce(samples: Sampler) -> int:
    """Returns how many numbers a record has as targets; labels are none."""
    _, y, _ = keras.utils.unpack_x_y_sample_weight(RecordMap(samples).structure)
    specs = [spec for spec in keras.tree.flatten(y) if spec is not None]
    return sum(math.prod(x.shape) for x in specs if x.dtype.kind == "f")


def trained_weights(model: keras.Model) -> Weights:
    """Returns the numbers of trainable weights of a model."""
    tables = {
        id(layer.embeddings)
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.Embedding)
    }
    sizes = [(id(x), math.prod(x.shape)) for x in model.trainable_variables]
    return Weights(
        in_tables=sum(size for name, size in sizes if name in tables),
        others=sum(size for name, size in sizes if name not in tables),
        averages=_averages_rows(layers_of(model)),
    )


def _averages_rows(found: Iterable[keras.Layer]) -> bool:
    """Returns whether an average is that of what an `Embedding` looked up."""
    rows: set[int] = set()
    for layer in found:
        # Some were called never, or several times: they have no one input.
        with contextlib.suppress(AttributeError, ValueError):
            taken = id(layer.input) in rows
            if isinstance(layer, keras.layers.Embedding) or (
                taken and isinstance(layer, keras.layers.Dropout)
            ):
                rows.add(id(layer.output))
            if taken and isinstance(layer, keras.layers.GlobalAveragePooling1D):
                return True
    return False


def walk(
    optimizer: keras.optimizers.Optimizer,
    stddev: float,
    rounds: int,
    rate: Any = None,
) -> float:
    """Returns how far noise moves a weight, as the root of the mean square.

    A copy of the optimizer is given `rounds` answers of independent normal
    numbers of deviation `stddev`, always the same ones. A `rate`, which may be
    a schedule, takes the place of its own.
    """
    steps = min(rounds, _MOST_ROUNDS)

    def walked() -> float:
        copy = fresh_copy_of(optimizer, rate)
        copy.use_ema = False
        start = _INITIAL * _normals(steps)
        weight = keras.Variable(start, dtype="float32")
        copy.build([weight])

        def step(number: Any) -> tuple[Any]:
            copy.apply([stddev * _normals(number)])
            return (number + 1,)

        def run() -> Any:
            tf.while_loop(lambda number: number < steps, step, [0])
            return tf.sqrt(tf.reduce_mean(tf.square(weight.value - start)))

        compiled = tf.function(run, autograph=False)
        return float(compiled.get_concrete_function()())

    # A thread of its own has no distribution strategy.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(walked).result() * math.sqrt(rounds / steps)


def _normals(step: Any) -> Any:
    return tf.random.stateless_normal([_SIDE, _SIDE], [0, step], alg="philox")


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
