"""From a Keras model, data and a privacy target to a private training."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_dp import _check, _peers
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery
from keras_dp.errors import CalibrationError
from keras_dp.keras_internals import compile_arguments_of, print_line
from keras_dp.ledger import (
    GaussianSum,
    PrivacyLedger,
    Round,
    SumQueryEvent,
)
from keras_dp.optimizers import DPOptimizer
from keras_dp.planning import calibrate_scale, plan
from keras_dp.planning.calibration import check_target
from keras_dp.sampling import PoissonBatches, datasets
from keras_dp.sampling.nests import mapped
from keras_dp.sampling.record_source import Records, as_arrays, is_source
from keras_dp.sampling.units import capped_rows
from keras_dp.training import PrivacyTarget, PrivateModel
from keras_dp.training.epsilon_limit import default_delta
from keras_dp.training.side_queries import SideQueries

# Sizes that a batch size is chosen from, as shares of the data.
_LARGEST_SHARE, _SMALLEST_BATCH = 0.25, 32
_CLIP = 1.0
# Arguments that are taken over from the `compile` of the user's model.
_KEPT = ("loss", "loss_weights", "metrics", "weighted_metrics")


@_peers.explains(_peers.RECIPE)
def make_private(
    model: keras.Model,
    data: Any,
    *,
    target_epsilon: float,
    epochs: int,
    ledger: PrivacyLedger | str | os.PathLike[str] = "privacy.ledger",
    batch_size: int | None = None,
    delta: float | None = None,
    validation_split: float = 0.0,
    l2_norm_clip: float = _CLIP,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    unit: str | None = None,
    unit_ids: Any = None,
    rows_per_unit: int | None = None,
    dataset: str | None = None,
    verbose: bool = True,
    **options: Any,
) -> PrivateModel:
    """Returns a private model that is ready to `fit`.

    It does what can be done by hand with `PoissonBatches`, `calibrate_scale`,
    `GaussianAverageQuery`, `DPOptimizer` and `PrivateModel`, and derives what
    must agree from one argument: the sampling probability and the denominator
    from `batch_size`, the noise from the target and from what the ledger holds
    already. The model is held, not copied: it is trained by `fit`.

    Guarantee: after `fit()` the whole ledger is `(target_epsilon, delta)`-
    private for one record more or less, certified; `fit` ends before a round
    would exceed that. The number of records becomes public.

    Args:
        model: Any Keras model; where it is compiled, its optimizer, loss and
            metrics are taken over.
        data: `(x, y)` or `(x, y, sample_weight)`, arrays or nests of arrays
            of equal length; a finite `tf.data.Dataset` or `PyDataset`, which
            is read into memory (see `PoissonBatches.from_dataset`); or a
            `PoissonBatches`.
        target_epsilon: For all rounds of the ledger, > 0.
        epochs: How many `fit()` will run, >= 1.
        ledger: The ledger of the data set, or the path of its file, which is
            created if there is none. By default all trainings in one folder
            count together; name the file where they are on several data sets.
        batch_size: Expected number of records in a sample. By default the
            smallest with nearly the best signal; see `plan`.
        delta: In (0, 1), by default `N^-1.1` for N records.
        validation_split: Share of the records, the last ones, that are held
            back before anything is sampled, in [0, 1); `fit` evaluates them
            after each epoch. That is not private, as for all
            `validation_data`. N counts the others.
        l2_norm_clip: Bound on the norm of an example's gradient, > 0.
        optimizer: Name, or Keras optimizer; by default that of the compiled
            model, else "adam". Its learning rate is kept.
        loss: As in `keras.Model.compile`; by default that of the model.
        metrics: As in `keras.Model.compile`; by default those of the model.
            They are computed without noise, and are not private.
        unit: The person or thing that one record stands for, such as
            "patient"; recorded in a new ledger. By default "example".
        unit_ids: Array `[N]` with the unit of each record, such as patient
            numbers. At most `rows_per_unit` records of each unit are kept,
            chosen at random.
        rows_per_unit: How many records one unit has at most. Target and reports
            are then for all of them together. 1 by default.
        dataset: Id of the data set; by default the name of a new file.
        verbose: Whether to print what was chosen.
        **options: Others of `PrivateModel.compile`. Private metrics keep their
            noise, and count towards the target.

    Raises:
        CalibrationError: The rounds that the ledger holds leave so little of
            the target that noise would hide all that is learned.
        ValueError: An argument is out of its range, or there is no loss.

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
    _check.integer_at_least(1, epochs=epochs)
    _check.finite_positive(
        l2_norm_clip=l2_norm_clip, target_epsilon=target_epsilon
    )
    if delta is not None:
        check_target(target_epsilon, delta)
    _check_split(data, validation_split)
    held_back = None
    if isinstance(data, PoissonBatches):
        samples, size = data, round(data.expected_sample_size)
        _check_no_more(batch_size=batch_size, unit_ids=unit_ids)
    else:
        data, units = _capped(_stored(data), unit_ids, rows_per_unit)
        if validation_split:
            data, held_back = _divided(data, validation_split)
        population = len(Records(data))
        if delta is None:
            delta = default_delta(units)
        if batch_size is None:
            batch_size = _size_for(population, target_epsilon, delta, epochs)
        _check_size(batch_size, population)
        size = batch_size
        samples = PoissonBatches(data, sampling_probability=size / population)
    if delta is None:
        delta = default_delta(samples.population_size)
    target = PrivacyTarget(target_epsilon, delta)
    own = _opened(ledger, dataset, unit, rows_per_unit)
    rounds = epochs * samples.rounds_per_epoch
    side = SideQueries(
        options.get("private_metrics"), options.get("batch_statistics")
    )
    noise_multiplier = _noise_for(own, samples, target, rounds, side.queries)
    _check_signal(noise_multiplier / size, rounds, target_epsilon, own)
    query = GaussianAverageQuery(
        l2_norm_clip, noise_multiplier * l2_norm_clip, denominator=size
    )
    private = PrivateModel(model)
    private.compile(
        DPOptimizer(_inner(model, optimizer), query=query, ledger=own),
        **_compiled(model, loss, metrics, options),
    )
    private.samples, private.target = samples, target
    private.epochs = epochs
    private.validation_data = held_back
    if verbose:
        print_line(
            f"Private training of {model.name!r}: "
            f"{samples.population_size:,} records, samples of {size:,} "
            f"expected, {rounds:,} rounds in {epochs:,} epochs, clip "
            f"{l2_norm_clip:g}, noise multiplier {noise_multiplier:.4g}. "
            f"Target: epsilon {target_epsilon:g} at delta = {delta:.3g}, for "
            f"all rounds of the ledger {_place_of(own)}, which holds "
            f"{len(own):,} so far."
        )
    return private


def _check_split(data: Any, validation_split: float) -> None:
    if not 0 <= validation_split < 1:
        raise ValueError(
            "`validation_split` must be in [0, 1). "
            f"Received: validation_split={validation_split!r}."
        )
    if validation_split and (
        isinstance(data, PoissonBatches) or is_source(data)
    ):
        raise TypeError(
            "`validation_split` must be 0 for data other than arrays and data "
            f"sets. Received: {type(data).__name__}. Make two of it, and pass "
            "the second as fit(validation_data=...)."
        )


def _stored(data: Any) -> Any:
    """Returns data as arrays, or as the source that they are."""
    if datasets.is_dataset(data):
        return datasets.stored(data)
    return data if is_source(data) else as_arrays(data)


def _divided(arrays: Any, validation_split: float) -> tuple[Any, Any]:
    """Returns the records to sample from, and those that are held back.

    Raises:
        ValueError: The share leaves no record to sample from.
    """
    kept = math.floor(len(Records(arrays)) * (1 - validation_split))
    if not kept:
        raise ValueError(
            "`validation_split` must leave at least one record. "
            f"Received: validation_split={validation_split!r}."
        )
    return (
        mapped(lambda _, leaf: leaf[:kept], arrays),
        mapped(lambda _, leaf: leaf[kept:], arrays),
    )


def _size_for(
    population: int, target_epsilon: float, delta: float, epochs: int
) -> int:
    """Returns the batch size that `plan` recommends."""
    most = max(1, int(population * _LARGEST_SHARE))
    sizes = [2**k for k in range(most.bit_length()) if 2**k <= most]
    found = plan(
        population,
        target_epsilon=target_epsilon,
        delta=delta,
        epochs=epochs,
        batch_sizes=[x for x in sizes if x >= _SMALLEST_BATCH] or [most],
    )
    return found.recommended.batch_size


def _check_size(batch_size: int, population: int) -> None:
    _check.integer_at_least(1, batch_size=batch_size)
    if batch_size > population:
        raise ValueError(
            f"`batch_size` must be at most {population}, the number of "
            f"records. Received: batch_size={batch_size!r}."
        )


def _check_no_more(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None with PoissonBatches, which have their "
                f"records and their probability. Received: {name}={value!r}."
            )


def _capped(
    data: Any, unit_ids: Any, rows_per_unit: int | None
) -> tuple[Any, int]:
    """Returns data with capped units, and the number of units.

    Raises:
        ValueError: There are ids without a cap, or not one for each record.
    """
    if data is None:
        raise TypeError(
            "`data` must be (x, y), or a PoissonBatches. Received: data=None."
        )
    records = len(keras.tree.flatten(data)[0])
    if unit_ids is None:
        return data, max(1, records // (rows_per_unit or 1))
    if rows_per_unit is None:
        raise ValueError(
            "`rows_per_unit` must be given with `unit_ids`: the most records "
            "of one unit that are kept. Received: rows_per_unit=None. A cap "
            "near the number that most units have costs little."
        )
    if len(unit_ids) != records:
        raise ValueError(
            f"`unit_ids` must have one entry for each of {records} records. "
            f"Received: {len(unit_ids)} entries."
        )
    rows = capped_rows(unit_ids, rows_per_unit)
    kept = keras.tree.map_structure(lambda leaf: np.asarray(leaf)[rows], data)
    return kept, len(np.unique(np.asarray(unit_ids)))


def _opened(
    ledger: Any,
    dataset: str | None,
    unit: str | None,
    rows_per_unit: int | None,
) -> Any:
    """Returns the ledger, opened or created if it is a path.

    Raises:
        ValueError: The ledger is open, and has another `rows_per_unit`.
    """
    if isinstance(ledger, (str, os.PathLike)):
        path = Path(ledger)
        if dataset is None and not path.exists():
            dataset = path.stem
        return PrivacyLedger.open(
            path, dataset=dataset, unit=unit, rows_per_unit=rows_per_unit
        )
    if not isinstance(ledger, PrivacyLedger):
        raise TypeError(
            "`ledger` must be a PrivacyLedger or the path of its file. "
            f'Received: ledger={ledger!r}. Pass a path such as "run.ledger".'
        )
    own = ledger.header.rows_per_unit
    if rows_per_unit not in (None, own):
        raise ValueError(
            f"`rows_per_unit` must be {own!r}, as in the ledger. Received: "
            f"rows_per_unit={rows_per_unit!r}."
        )
    return ledger


def _place_of(ledger: PrivacyLedger) -> str:
    return "in memory" if ledger.path is None else str(ledger.path)


def _noise_for(
    ledger: PrivacyLedger,
    samples: PoissonBatches,
    target: PrivacyTarget,
    rounds: int,
    side_queries: Mapping[str, DPQuery],
) -> float:
    """Returns the noise multiplier of rounds on top of what a ledger holds.

    Side queries keep their own noise: the gradients get what they leave.
    """
    held = ledger.rounds
    side_events: list[SumQueryEvent] = []
    for name, query in side_queries.items():
        event = query.planned_event(query.initial_global_state())
        side_events += query.ledger_events(event, name)

    def planned(scale: float) -> Any:
        queries = (GaussianSum("gradients", 1.0, scale), *side_events)
        return [*held, (Round(samples.sampling_event, queries), rounds)]

    return calibrate_scale(
        planned,
        target_epsilon=target.epsilon,
        delta=target.delta,
        accountant=target.accountant,
        neighbours=target.neighbours,
        group_size=ledger.header.rows_per_unit,
    )


def _check_signal(
    noise_per_example: float,
    rounds: int,
    target_epsilon: float,
    ledger: PrivacyLedger,
) -> None:
    """Raises where noise hides all rounds together.

    A sum of averages of norm 1, all in one direction, is then shorter than the
    noise in that direction.
    """
    if math.sqrt(rounds) < noise_per_example:
        raise CalibrationError(
            "`target_epsilon` must leave room to learn something. Received: "
            f"target_epsilon={target_epsilon!r}, for a ledger "
            f"{_place_of(ledger)} that holds {len(ledger):,} rounds: the noise "
            "would hide all that more rounds say. Raise the target, or name "
            "another ledger if these rounds were of other data."
        )


def _inner(model: keras.Model, optimizer: Any) -> keras.optimizers.Optimizer:
    """Returns a new optimizer like the given one, or the model's."""
    if optimizer is None:
        optimizer = compile_arguments_of(model).get("optimizer", "adam")
    found = keras.optimizers.get(optimizer)
    if found is optimizer:  # One that is built belongs to its variables.
        return type(found).from_config(found.get_config())
    return found


def _compiled(
    model: keras.Model, loss: Any, metrics: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of `compile`, first those given, then the model's.

    Raises:
        ValueError: There is no loss.
    """
    before = compile_arguments_of(model)
    given = {"loss": loss, "metrics": metrics, **options}
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
