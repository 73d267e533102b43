"""Conditions on a training: on its data, settings and first batch."""

import contextlib
import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check, _nests
from keras_dp.dp_queries import NestedQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import optimizers_in, strategy_of
from keras_dp.ledger import GaussianSum, PrivacyLedger, Round
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.sampling import Sampler
from keras_dp.sampling.pipelines import Stage, stages_by_contents
from keras_dp.training.advice.condition import Condition
from keras_dp.training.data.batches import StepBatch
from keras_dp.training.data.data_adapter import DataAdapter

# Below it, a round of a small sample costs an epsilon of about ten.
_LEAST_MULTIPLIER = 0.3
# A sample of fewer records is mostly noise at any useful epsilon. It is also
# the least that `make_private` chooses where there are enough records.
_SMALL_SAMPLE = 32
# A bound that fails with a larger probability is commented on.
_LARGE_DELTA = 1e-3
# A larger epsilon protects hardly anyone.
_LARGE_EPSILON = 20.0
# A share that the denominator may differ from the expected sample by.
_ABOUT = 0.05
# Sums are cut off at this many standard deviations of their noise.
_CUT_OFF = 2.0**27

# Arrays that take more work to compare are not said to share memory.
_MOST_WORK = 10_000

# The variables of the environment that let oneDNN round factors.
_MODES_OF_ONEDNN = (
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)
_UNSUPPORTED = (
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
)
# The numbers of batches, of rows or of epochs that `fit` takes.
_COUNTS = (
    "batch_size",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)
_WITH_THE_RECORDS = (
    "its records hold them. Pass (x, y), or (x, y, sample_weight), to "
    "make_private or to the sampler"
)
# Options that must not be given with a sampler, and what to do instead.
_OF_SAMPLERS = {
    "y": _WITH_THE_RECORDS,
    "sample_weight": _WITH_THE_RECORDS,
    "batch_size": "it draws their number. Pass the mean to make_private or to "
    "the sampler",
    "validation_split": "it draws from all its records. Give it those to train "
    "on, and the others to fit as validation_data=(x, y)",
}
# The beginnings of names of logs that tell nothing of single records.
_PUBLIC = ("val_", "epsilon", "rounds_left", "signal_to_noise")


class FirstBatch(NamedTuple):
    """The first batch of a training, and what is known of its round.

    The round is the `planned` one, and the query that of the gradients.
    """

    planned: Round
    query: Any
    adapter: DataAdapter
    batch: StepBatch

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        return int(keras.tree.flatten(self.batch.x)[0].shape[0])

    @property
    def expected(self) -> float:
        """The expected number of records of a sample; 0 if none is drawn."""
        if not self.adapter.is_sampler:
            return 0.0
        return float(self.adapter.source.expected_records)


def check_counts(epochs: int, options: Mapping[str, Any]) -> None:
    """Raises for numbers of `fit` for which nothing, or too much, would run.

    Keras takes 0 for the default, or fails once it has trained.
    """
    _check.integer_at_least(1, epochs=epochs)
    for name in _COUNTS:
        value = options.get(name)
        is_list = name == "validation_freq" and isinstance(value, Collection)
        if value is not None and not is_list:
            remedy = " Leave it out for the default."
            _check.integer_at_least(1, remedy, **{name: value})
    share = options.get("validation_split") or 0
    _check.share("[0, 1)", validation_split=share)
    _check.integer_at_least(0, initial_epoch=options.get("initial_epoch", 0))


def _besides_a_sampler(options: Mapping[str, Any]) -> Any:
    """Returns an option that a sampler leaves no place for, and what to do."""
    for name, instead in _OF_SAMPLERS.items():
        given = options.get(name)
        if given is not None and (name != "validation_split" or given):
            return name, instead
    return None


def _decided_by(callbacks: Any) -> Any:
    """Returns a callback of Keras that acts on a metric, and the metric."""
    for each in (
        callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    ):
        nan = isinstance(each, keras.callbacks.TerminateOnNaN)
        metric = "loss" if nan else getattr(each, "monitor", None)
        acts = getattr(each, "save_best_only", True)
        if isinstance(metric, str) and acts and not metric.startswith(_PUBLIC):
            return type(each).__name__, metric
    return None


def _trained_on(x: Any, validation_data: Any) -> bool:
    """Returns whether data to validate on are parts of what is trained on."""
    records = x.records.in_memory if isinstance(x, Sampler) else x
    trained, others = (
        [
            each
            for each in keras.tree.flatten(data)
            if isinstance(each, np.ndarray)
        ]
        for data in (records, validation_data)
    )
    return any(
        _share_rows(one, other)
        for one, other in itertools.product(trained, others)
    )


def _share_rows(one: np.ndarray, other: np.ndarray) -> bool:
    # Rows in steps, as of x[::2] and x[1::2], lie between each other.
    with contextlib.suppress(np.exceptions.TooHardError):
        # The stubs of NumPy know two numbers only.
        work: Any = _MOST_WORK
        return np.shares_memory(one, other, max_work=work)
    return False


def _stages(data: Any) -> list[str]:
    return Stage(data).kinds if isinstance(data, tf.data.Dataset) else []


def _repeated_first(data: Any) -> Any:
    stages = _stages(data)
    batches = [i for i, name in enumerate(stages) if "Batch" in name]
    repeats = [i for i, name in enumerate(stages) if "Repeat" in name]
    return batches and repeats and min(repeats) < max(batches) and repr(stages)


def _may_repeat(data: Any) -> bool:
    """Whether the form of the data leaves open that batches repeat records.

    It does not for arrays, nor for data sets of known length or repeated after
    they are batched.
    """
    if isinstance(data, tf.data.Dataset):
        size = int(data.cardinality())
        if size != tf.data.INFINITE_CARDINALITY:
            return size < 0
        return not any("Repeat" in name for name in _stages(data))
    return not all(
        isinstance(leaf, np.ndarray | tf.Tensor)
        for leaf in keras.tree.flatten(data)
    )


def _rounded_factors(training: Any) -> Any:
    for name in _MODES_OF_ONEDNN:
        mode = os.environ.get(name, "")
        if mode.upper() not in {"", "STRICT"}:
            remedy = "Unset it before TensorFlow is imported."
            return f"{name}={_check.shown(mode)}", remedy
    on_gpus = tf.config.list_physical_devices("GPU")
    float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    if on_gpus and float_32:
        remedy = "enable_tensor_float_32_execution(False)"
        return "TensorFloat-32", f"Call tf.config.experimental.{remedy} first."
    return None


def _made_elsewhere(training: Any) -> Any:
    """Returns a part, its strategy, and that of the private model."""
    own = training.replicas.strategy
    parts = [
        ("The wrapped model", training.model.distribute_strategy),
        ("The optimizer", strategy_of(training.optimizer)),
        *[
            ("The inner optimizer", strategy_of(each))
            for each in optimizers_in(training.optimizer.inner)
        ],
    ]
    for what, strategy in parts:
        if strategy is not own:
            return what, type(strategy).__name__, type(own).__name__
    return None


def _other_unit(training: Any) -> Any:
    header, drawn = training.ledger.header, training.adapter.unit
    fits = header.unit != "microbatch"
    if drawn == "user":
        fits = header.unit not in UNITS_OF_ROWS and header.rows_per_unit == 1
    return not fits and (header.unit, header.rows_per_unit, drawn)


def _units(training: Any) -> int | None:
    """Returns the least number of units that there can be, if it is known."""
    size = training.adapter.population_size
    if size is None:
        return None
    return max(1, size // training.ledger.header.rows_per_unit)


def _publishes_one(training: Any) -> Any:
    units, of_rows = _units(training), training.ledger.header.rows_per_unit
    if units is None or training.delta * units < 1:
        return None
    rows = "records" if of_rows == 1 else f"units of {of_rows} records each"
    return repr(training.delta), units, rows


def _has_large_delta(training: Any) -> Any:
    large = _units(training) is not None and training.delta > _LARGE_DELTA
    return (
        large
        and not _publishes_one(training)
        and (training.delta, _units(training))
    )


def _missing_rounds(optimizer: DPOptimizer) -> Any:
    """Returns the rounds released, the ledger's name, and the rounds it holds.

    If the ledger also holds rounds of other trainings, they can hide that.
    """
    ledger = optimizer.ledger
    if not isinstance(ledger, PrivacyLedger):
        return None
    released, held = optimizer.rounds_released, len(ledger)
    return released > held and (released, ledger.name or "in memory", held)


def _too_little_noise(first: FirstBatch) -> Any:
    """Returns the least multiplier, that of a sum, and the name of the sum."""
    least = first.rows / _CUT_OFF
    for query in first.planned.queries:
        bound = getattr(query, "l2_norm_bound", 0.0)
        stddev = getattr(query, "noise_stddev", 0.0)
        if 0 < stddev < bound * least:
            return least, first.rows, stddev / bound, query.name
    return None


def _hardly_noised(first: FirstBatch) -> Any:
    """Returns the name and the noise multiplier of the sum with the least."""
    multipliers = {
        event.name: event.noise_stddev / event.l2_norm_bound
        for event in first.planned.queries
        if isinstance(event, GaussianSum)
        and event.noise_stddev < _LEAST_MULTIPLIER * event.l2_norm_bound
    }
    return multipliers and min(multipliers.items(), key=lambda found: found[1])


def _other_denominator(first: FirstBatch) -> Any:
    expected = first.expected
    for own in sorted(set(_denominators(first.query))) if expected else ():
        if abs(own - expected) > _ABOUT * expected:
            return own, expected, expected / own
    return None


def _denominators(query: Any) -> Iterator[float]:
    """Yields the denominators of a query, and of those for its groups."""
    if hasattr(query, "denominator"):
        yield query.denominator
    elif isinstance(query, NestedQuery):
        for each in _nests.leaves(query.queries):
            yield from _denominators(each)
    elif hasattr(query, "inner"):
        yield from _denominators(query.inner)


def _was_not_sampled(first: FirstBatch) -> bool:
    size = first.adapter.population_size
    return not first.adapter.is_sampler and (size is None or first.rows < size)


def _scales_gradients(first: FirstBatch) -> Any:
    """Returns what has weights; no weight of an example is looked at."""
    if first.adapter.class_weight is not None:
        weights = np.abs([*first.adapter.class_weight.values()])
        is_far = len(weights) and not 0.1 <= np.median(weights) <= 10
        return is_far and "`class_weight` has weights far from 1"
    weight = first.batch.sample_weight
    return weight is not None and "Examples have weights, not looked at"


# These are asked of the epsilon of a target.
TARGETS = (
    Condition(
        lambda epsilon: epsilon > _LARGE_EPSILON and epsilon,
        None,
        "target_epsilon = {:g} protects hardly anyone: an attacker can be all "
        "but certain whether a record was used. Targets are mostly between 1 "
        "and 10.",
    ),
)

# These are asked of the options of `fit`, `evaluate` or `predict` besides a
# sampler.
BESIDES_A_SAMPLER = (
    Condition(
        _besides_a_sampler,
        ValueError,
        "`{}` must not be given with a sampler, such as that of make_private: "
        "{}.",
    ),
)

# These are asked of the callbacks of a training without private metrics.
CALLBACKS = (
    Condition(
        _decided_by,
        None,
        "{0} acts on {1!r}, computed on the training data without noise: the "
        "privacy guarantee does not cover what it decides. Release the metric "
        "by compile(..., private_metrics=...), or use one of public validation "
        "data, such as 'val_{1}'.",
    ),
)

# These are asked of the argument `x` of `fit`, and of its validation data.
VALIDATION = (
    Condition(
        _trained_on,
        None,
        "`validation_data` are records that are trained on. What is shown of "
        "them has no noise, and the privacy guarantee does not cover it. Pass "
        "other records, or private_metrics=... for values with noise.",
    ),
)

# These are asked of the header of the ledger, where `fit` gets data besides
# that of `make_private`.
OTHER_DATA = (
    Condition(
        lambda header: (
            header.rows_per_unit > 1 and (header.unit, header.rows_per_unit)
        ),
        None,
        "`fit` was given data of its own, of which no record was left out: "
        "epsilon holds only if one {} has at most {} of its records. fit() "
        "without data takes the records of make_private.",
    ),
)

# These are asked of the argument `x` of `fit`, other than a sampler. A record
# that a batch holds k times moves its sum by up to k times the clip. Copies of
# a record that the data itself holds are not found.
BATCHES = (
    Condition(
        lambda data: (found := stages_by_contents(data)) and repr(found),
        None,
        "The stages {} of this data set look at the contents of records. So "
        "one record may decide in which batches others are, or how far these "
        "are padded, and change several sums by more than the clip. The ledger "
        "says so: its epsilon is for a record that is set to zero after "
        "batching, not for one that is replaced. Filter, sort and pad the "
        "records before training, and use keras_dp.sampling.PoissonBatches.",
    ),
    Condition(
        _repeated_first,
        PrivateTrainingError,
        "A data set must be batched before it is repeated: a batch across the "
        "end of the data can hold a record twice, which moves its sum by twice "
        "the clip. Received: the stages {}. Call dataset.batch(...).repeat(), "
        "or use keras_dp.sampling.PoissonBatches.",
    ),
    Condition(
        _may_repeat,
        None,
        "A batch of this data may hold a record twice, for example where the "
        "data starts again. The sum then changes by twice the clip, and the "
        "ledger does not know it. Pass arrays or a sampler, or batch the data "
        "set before it is repeated.",
    ),
)

# These are asked of a `Training`.
PREPARED = (
    Condition(
        _rounded_factors,
        PrivateTrainingError,
        "Private training must multiply float32 numbers as such. In bfloat16 "
        "or TensorFloat-32, clipped gradients exceed their bound by a relative "
        "1e-2 or 1e-3. Received: {}. {}",
    ),
    Condition(
        lambda training: (
            isinstance(training.replicas.strategy, _UNSUPPORTED)
            and type(training.replicas.strategy).__name__
        ),
        PrivateTrainingError,
        "Private training must run under MirroredStrategy, "
        "MultiWorkerMirroredStrategy or no strategy: each replica must have a "
        "copy of all variables. Received: {}. Build and compile the model in "
        "the scope of one of those.",
    ),
    Condition(
        _made_elsewhere,
        PrivateTrainingError,
        "{} must be made in the scope of the strategy of the private model. "
        "Received: {}, where the private model has {}. Make and compile all of "
        "them inside `with strategy.scope():`.",
    ),
    Condition(
        lambda training: (
            training.adapter.unit != "example"
            and training.side_queries.queries
            and (training.adapter.unit, sorted(training.side_queries.queries))
        ),
        PrivateTrainingError,
        "`private_metrics` and `batch_statistics` must be None with samples of "
        "unit {!r}: such a unit gives them a record for each of its examples, "
        "and they bound one record. Received: {!r}. Compile without them, or "
        "draw single examples or RandomMicrobatches.",
    ),
    Condition(
        _other_unit,
        PrivateTrainingError,
        "The unit of the ledger must be what is drawn: a guarantee for "
        "microbatches says nothing of their examples, and users are drawn as a "
        "whole. Received: a ledger of unit {!r} with rows_per_unit={}, and "
        "samples of unit {!r}. Open another ledger: for UserBatches, with "
        'unit="user" or a word for those whom `user_ids` name. Or use '
        "RandomMicrobatches, which protect examples.",
    ),
    Condition(
        _publishes_one,
        None,
        "delta = {} is at least 1/N for {} {}: it allows a mechanism that "
        "publishes one of them. Take N^-1.1 or less.",
    ),
    Condition(
        _has_large_delta,
        None,
        "delta = {:g} is large: with this probability the bound epsilon may "
        "fail. For {} records or units the default is N^-1.1. Pass a smaller "
        "one, such as delta=1e-5; it takes more noise.",
    ),
)

# These are asked of an optimizer with the state that was restored. An older
# copy may have replaced the ledger that covered its rounds.
RESTORED = (
    Condition(
        _missing_rounds,
        None,
        "The optimizer has released {:,} rounds, and the ledger {} holds {:,}. "
        "Reports of it are too low for these weights, unless their rounds were "
        "on other data. If an older copy replaced the ledger, put back the "
        "newest one, which counts the missing rounds.",
    ),
)

# These are asked of a `FirstBatch`.
FIRST_BATCH = (
    Condition(
        _too_little_noise,
        ValueError,
        "`noise_multiplier` must be 0 or at least {:.3g} for batches of {:,} "
        "rows. Received: {:.3g} for {!r}. Sums are cut off at 2^27 standard "
        "deviations of their noise. 0 trains without noise, to compare with.",
    ),
    Condition(
        _hardly_noised,
        None,
        "The noise of {!r} is only {:.3g} times its clip: every round costs a "
        "large epsilon, and without noise an infinite one. Noise relative to "
        "the clip is passed as noise_multiplier=.",
    ),
    Condition(
        _other_denominator,
        None,
        "The denominator is {0:g}, where samples have {1:g} records on "
        "average: steps are {2:.3g} times those of an average. Take "
        "denominator={1:g}: expected_sample_size of the sampler, over the size "
        "of a microbatch if there is one.",
    ),
    Condition(
        lambda first: 0 < first.expected < _SMALL_SAMPLE and first.expected,
        None,
        "Samples have {:g} records on average: noise hides gradients of so "
        "few. keras_dp.planning.plan compares batch sizes at the same epsilon.",
    ),
    Condition(
        _was_not_sampled,
        None,
        "The library did not draw these batches, so they are recorded without "
        "amplification by sampling: each costs as much as all records. Pass a "
        "sampler to fit, such as "
        "keras_dp.PoissonBatches((x, y), sampling_probability=...), or "
        "PoissonBatches.from_dataset(dataset, sampling_probability=...).",
    ),
    Condition(
        _scales_gradients,
        None,
        "{}. Weights multiply gradients before these are clipped, and the "
        "noise follows the clip: it hides gradients of small weights. Scale "
        "the weights to about 1, such as 1/count by the mean count.",
    ),
)

# These are asked of the logs of an epoch.
EPOCHS = (
    Condition(
        lambda logs: not np.isfinite(float(logs.get("loss", 0.0))),
        None,
        "The loss that is shown is not finite, for some record at least. Such "
        "records count as zero: they train nothing, and do not harm the "
        "weights. Replace missing values; np.isfinite(x).all(axis=0) shows "
        "their columns. If there are none, the weights may have grown: lower "
        "the learning rate.",
    ),
)
