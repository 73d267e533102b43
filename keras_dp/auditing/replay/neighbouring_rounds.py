"""Runs rounds on neighbouring samples and compares them with the ledger."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp.auditing.rehearsal import Observation, Rehearsal
from keras_dp.auditing.replay import draw, noise, sensitivity
from keras_dp.auditing.replay.findings import CheckReport, Finding
from keras_dp.auditing.replay.neighbours import (
    Rows,
    neighbours,
    only,
    small_batch,
    without,
)
from keras_dp.errors import (
    GradientCheckError,
    LedgerError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.sampling import Sampler
from keras_dp.training import PrivateModel
from keras_dp.training.data.data_adapter import DataAdapter, PhysicalStep

# Sums over parts add up to the sum of the sample, to the accuracy of float32.
_ADDITIVE = 1e-3
# The neighbours that show what later physical batches do in another way.
_IN_SPLIT_SAMPLES = {
    "as it is",
    "with huge inputs and targets",
    "with targets far above",
    "that is padding, with NaN in it",
}


def check(
    private_model: PrivateModel, batches: Any, *, records: int = 8
) -> CheckReport:
    """Compares rounds on neighbouring samples with the ledger.

    A round runs many times from one state and one seed. Each time, one place of
    the sample has another record: the original, zeros, huge values, NaN, a copy
    of another record, or padding. The step, the queries and the recorder are
    those of `fit`, with a ledger in memory. Weights, states and metrics are
    restored afterwards. The questions are:

    * sensitivity: does a record move the sum of each query by at most the bound
      in the ledger?
    * independence: does a record leave the contributions of others unchanged?
    * flow: if the private answers are equal, are weights, states, seeds and
      logs equal too, for any record?
    * noise: does the noise have the distribution in the ledger, and is it new
      in each round and for each query?
    * record: does the ledger hold the round before it runs, and is the ledger
      of the training intact?
    * draw: does the sampler follow its sampling event?

    A report without findings does not prove privacy: the check uses a few
    records and the present state of the model. Each of its statistical tests
    raises a false alarm with a probability of about 1e-10. The report depends
    on the records. Use public or artificial data of the same shapes, or keep
    the report as secret as the data.

    Args:
        private_model: A compiled model on one device. It may have trained.
        batches: Data as for `fit`: a sampler, `(x, y)`, `(x, y,
            sample_weight)`, or an iterable of such batches. The check uses the
            first batch.
        records: The number of records, or of units of several rows, in a
            sample, >= 2.

    Returns:
        The findings and the measurements.

    Raises:
        TypeError: An argument has another type.
        PrivateTrainingError: The model is not compiled, or it trains on
            several devices.

    Source: "Re:cord-play" (2026), arXiv:2602.17454, for the idea of running a
    mechanism on neighbours and comparing everything that changes.

    >>> import keras, keras_dp, numpy as np
    >>> x = np.random.default_rng(0).normal(size=[64, 3]).astype("float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> private = keras_dp.PrivateModel(model)
    >>> private.compile(
    ...     keras_dp.DPSGD(0.1,
    ...         ledger=keras_dp.PrivacyLedger.in_memory(dataset="doc"),
    ...         query=keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=16)),
    ...     loss="mse", private_metrics={})
    >>> samples = keras_dp.PoissonBatches(
    ...     (x, x[:, :1]), sampling_probability=0.25)
    >>> check(private, samples).passed
    True
    """
    _check.kind(PrivateModel, private_model=private_model)
    _check.integer_at_least(2, records=records)
    adapter = DataAdapter(_source(batches))
    ready = private_model._preparation(adapter.source)
    if ready.replicas.are_many:
        raise PrivateTrainingError(
            "`private_model` must train on one device. Received: the strategy "
            f"{private_model.distribute_strategy!r}. Make the same model "
            "outside of its scope."
        )
    found = _Findings()
    _look_at_ledger(private_model, found)
    if isinstance(adapter.source, Sampler):
        for departure in draw.departures(adapter.source):
            found.add("draw", repr(adapter.source), departure + ".")
    group = 1 if adapter.grouping is None else adapter.grouping.rows
    first = _first_batch(adapter)
    batch = small_batch(first, group, group * records)
    try:
        with Rehearsal(private_model, ready).begun(first, batch) as rehearsal:
            _look_at_rounds(rehearsal, batch, group, adapter, found)
            _look_at_noise(rehearsal, batch, found)
    except (
        GradientCheckError,
        PrivateTrainingError,
        UnsupportedLayerError,
    ) as refusal:
        found.add("refusal", private_model.model.name, str(refusal))
    return CheckReport(
        tuple(found.findings),
        tuple(sorted(found.exposed)),
        tuple(found.measured),
        tuple(found.not_measured),
    )


class _Findings:
    """Collects findings, each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.measured: list[str] = []
        self.not_measured: list[str] = []
        self.exposed: set[str] = set()

    def add(self, question: Any, where: str, message: str) -> None:
        known = {(each.question, each.where) for each in self.findings}
        if (question, where) not in known:
            self.findings.append(Finding(question, where, message))


def _source(samples: Any) -> Any:
    if isinstance(samples, Sampler | tf.data.Dataset):
        return samples
    if isinstance(samples, tuple) and len(samples) in (2, 3):
        return samples
    return next(iter(samples))


def _first_batch(adapter: DataAdapter) -> PhysicalStep:
    source = adapter.source
    if adapter.is_sampler:
        # An empty sample shows nothing.
        for data in adapter.dataset():
            batch = adapter.step_from(data)
            if bool(tf.reduce_any(batch.mask)):
                return batch
    if isinstance(source, tf.data.Dataset):
        source = next(iter(source))
    return adapter.step_from(source)


def _look_at_ledger(private_model: PrivateModel, found: _Findings) -> None:
    """Verifies the chain of hashes of the ledger itself."""
    own = private_model.optimizer.required_ledger()
    if not isinstance(own, ledger.PrivacyLedger):
        return
    try:
        own.verify()
    except LedgerError as error:
        found.add("record", repr(own), str(error))


def _look_at_rounds(
    rehearsal: Rehearsal,
    batch: PhysicalStep,
    group: int,
    adapter: DataAdapter,
    found: _Findings,
) -> None:
    count = len(np.asarray(batch.mask))
    shares: dict[str, float] = {}
    for own in _places(count, adapter):
        base = rehearsal.run(without(batch, own))
        if rehearsal.shows_raw_metrics:
            found.exposed |= set(base.logs)
        _look_at_record(base, batch, found)
        for name, changed, present in neighbours(batch, own):
            other = rehearsal.run(changed, repeats_answers=True)
            where = f"a record {name}"
            _compare_sums(base, other, where, present, shares, found)
            _compare_flow(
                base, other, where, rehearsal.shows_raw_metrics, found
            )
            if present and len(own) == group:
                alone = rehearsal.run(only(changed, own), repeats_answers=True)
                _compare_parts((other, base, alone), where, found)
        whole = own[0] - own[0] % group + np.arange(group)
        _look_at_independence(rehearsal, batch, whole, found)
    if isinstance(adapter.source, Sampler):
        _look_at_split_samples(rehearsal, batch, group, adapter, shares, found)
    for name, share in shares.items():
        found.measured.append(
            f"a record moved the sum of {name!r} by at most "
            f"{100 * share:.3g} % of its bound."
        )


def _places(count: int, adapter: DataAdapter) -> Iterator[Rows]:
    """Yields the rows of the first unit, and those of the last."""
    own = _rows_of_unit(adapter)
    yield np.arange(own)
    yield np.arange(count - own, count)


def _rows_of_unit(adapter: DataAdapter) -> int:
    """Returns how many rows one unit has: one example among several has one."""
    grouping = adapter.grouping
    if grouping is None:
        return 1
    return grouping.views if adapter.unit == "example" else grouping.rows


def _look_at_record(
    base: Observation, batch: PhysicalStep, found: _Findings
) -> None:
    if not base.was_covered:
        found.add(
            "record",
            "the ledger",
            "it does not hold a round before the round runs: a crash would "
            "leave a release that nobody counts.",
        )
    if sum(each.count for each in base.rounds) != 1:
        found.add(
            "record",
            "the ledger",
            f"one round ran, and it holds {base.rounds!r}.",
        )
    for each in base.rounds:
        if each.round.sampling != batch.sampling:
            found.add(
                "record",
                "the ledger",
                f"the sample was drawn by {batch.sampling!r}, and it says "
                f"{each.round.sampling!r}.",
            )
    for event in base.events:
        if isinstance(event, ledger.NonPrivateSum):
            found.add(
                "noise",
                event.name,
                "the sum has neither bound nor noise: epsilon is infinite.",
            )
    if len(base.mechanisms) != len(base.events):
        found.add(
            "record",
            "the ledger",
            f"{len(base.mechanisms)} sums were released, and it holds "
            f"{len(base.events)} events. Let `mechanisms` and `ledger_events` "
            "of the query agree.",
        )


def _compare_sums(
    base: Observation,
    other: Observation,
    where: str,
    present: bool,
    shares: dict[str, float],
    found: _Findings,
) -> None:
    if base.events != other.events:
        found.add(
            "record",
            "the ledger",
            f"{where} changes what it says of the round.",
        )
        return
    for one, two, event in zip(
        base.mechanisms, other.mechanisms, base.events, strict=False
    ):
        sums = sensitivity.sum_of(one), sensitivity.sum_of(two)
        if not present:
            apart = sensitivity.distance(*sums)
            if not apart <= 1e-5 * max(1.0, sensitivity.norm(sums[0])):
                found.add(
                    "sensitivity",
                    event.name,
                    f"{where} moves its sum: padding counts. Give it to the "
                    "query with the mask of the batch.",
                )
            continue
        share = sensitivity.share_of_bound(event, *sums)
        if share is None:
            continue
        known = shares.get(event.name, 0.0)
        shares[event.name] = share if np.isnan(share) else max(known, share)
        if not sensitivity.is_kept(share):
            found.add(
                "sensitivity",
                event.name,
                f"{where} moves its sum by {share:.4g} times the bound in the "
                f"ledger, {_bound(event)}{_largest(one, two)}. Clip the record "
                "in the query, after everything that makes it, and count what "
                "is not finite as zero.",
            )


def _bound(event: ledger.SumQueryEvent) -> str:
    bound = getattr(event, "l2_norm_bound", None)
    return "its vectors" if bound is None else f"{bound:.4g}"


def _largest(one: Any, two: Any) -> str:
    """Describes which part of the record moved most, if it has several."""
    pairs = zip(sensitivity.sum_of(one), sensitivity.sum_of(two), strict=True)
    moves = [float(np.linalg.norm(a - b)) for a, b in pairs]
    if len(moves) < 2:
        return ""
    worst = int(np.argmax(np.nan_to_num(moves, nan=np.inf)))
    return f", most of it in part {worst} of {len(moves)} of the record"


def _compare_flow(
    base: Observation,
    other: Observation,
    where: str,
    shows_raw_metrics: bool,
    found: _Findings,
) -> None:
    for name, digest in base.variables.items():
        if shows_raw_metrics and name in base.metric_variables:
            continue
        if other.variables.get(name) != digest:
            found.add(
                "flow",
                name,
                f"{where} moves it past the noise: it differs where all "
                "private answers are the same. What follows the data must go "
                "through a query.",
            )
    if not shows_raw_metrics:
        for name, value in base.logs.items():
            shown = other.logs.get(name, np.inf)
            if not np.array_equal(shown, value, equal_nan=True):
                found.add(
                    "flow",
                    f"logs[{name!r}]",
                    f"{where} moves what callbacks see, past the noise.",
                )
    if set(base.logs) != set(other.logs):
        found.add("flow", "logs", f"{where} changes which metrics are shown.")
    if other.traces != base.traces:
        found.add(
            "flow",
            "the compiled step",
            f"{where} has it traced again: control follows the data.",
        )


def _look_at_independence(
    rehearsal: Rehearsal, batch: PhysicalStep, own: Rows, found: _Findings
) -> None:
    """Compares the sum of all records with the sums of its two parts."""
    for loose in (False, True):
        whole, others, alone = (
            rehearsal.run(step, loose=loose)
            for step in (batch, without(batch, own), only(batch, own))
        )
        _compare_parts((whole, others, alone), "a record", found)


def _compare_parts(
    of: tuple[Observation, Observation, Observation],
    where: str,
    found: _Findings,
) -> None:
    """Compares a sum over a sample with those over the others and one."""
    for event, *mechanisms in zip(
        of[0].events, *(each.mechanisms for each in of), strict=False
    ):
        whole, rest, single = map(sensitivity.sum_of, mechanisms)
        size = np.max(
            [sensitivity.norm(each) for each in (whole, rest, single)]
        )
        if not np.isfinite(size):
            continue  # The question of sensitivity covers this.
        apart = sensitivity.norm(
            [w - r - s for w, r, s in zip(whole, rest, single, strict=True)]
        )
        if not apart <= _ADDITIVE * size:
            found.add(
                "independence",
                event.name,
                f"{where} changes what the others contribute: the sum over a "
                "sample is not that over its parts. Look for what is computed "
                "over the batch, in layers, the loss, metrics or the query.",
            )


def _look_at_split_samples(
    rehearsal: Rehearsal,
    batch: PhysicalStep,
    group: int,
    adapter: DataAdapter,
    shares: dict[str, float],
    found: _Findings,
) -> None:
    """Asks the questions of a sample in three physical batches."""
    rows = np.arange(len(np.asarray(batch.mask))).reshape(-1, group)
    # The first batch may be empty, the others not.
    *_, middle, last = parts = np.array_split(rows[::-1], 3)[::-1]

    def split(step: PhysicalStep) -> list[PhysicalStep]:
        masks = [only(step, part.ravel()).mask for part in parts]
        present = step.mask
        return [
            step._replace(mask=tf.logical_and(mask, present)) for mask in masks
        ]

    whole = rehearsal.run(batch)
    apart = rehearsal.run(*split(batch), repeats_answers=True)
    where = "a sample in three physical batches, and not in one,"
    _look_at_record(apart, batch, found)
    seeds, others = _seeds_apart(whole)
    seeds_apart, others_apart = _seeds_apart(apart)
    raw = rehearsal.shows_raw_metrics
    _compare_flow(others, others_apart, where, raw, found)
    if seeds == seeds_apart:
        _compare_whole(whole, apart, found)
    for part in (middle, last):
        own = part[0, : _rows_of_unit(adapter)]
        base = rehearsal.run(*split(without(batch, own)))
        _look_at_answers(rehearsal, where, found)
        for name, changed, present in neighbours(batch, own):
            if name not in _IN_SPLIT_SAMPLES:
                continue
            other = rehearsal.run(*split(changed), repeats_answers=True)
            place = f"a record {name}, in a later physical batch,"
            _compare_sums(base, other, place, present, shares, found)
            _compare_flow(base, other, place, raw, found)


def _seeds_apart(
    observed: Observation,
) -> tuple[dict[str, str], Observation]:
    """Returns the seeds of layers, and an observation without them.

    Each physical batch moves them. The first batch of each kind is traced, so
    that the number of traces is left out, too.
    """
    seeds = {
        name: digest
        for name, digest in observed.variables.items()
        if name.endswith("seed_generator_state")
    }
    others = {
        name: digest
        for name, digest in observed.variables.items()
        if name not in seeds
    }
    return seeds, observed._replace(variables=others, traces=0)


def _compare_whole(
    one: Observation, several: Observation, found: _Findings
) -> None:
    """Compares the sum of one physical batch with that of several."""
    for event, *mechanisms in zip(
        one.events, one.mechanisms, several.mechanisms, strict=False
    ):
        sums = [sensitivity.sum_of(each) for each in mechanisms]
        apart = sensitivity.distance(*sums)
        if not apart <= _ADDITIVE * max(map(sensitivity.norm, sums)):
            found.add(
                "independence",
                event.name,
                "a sample in three physical batches has another sum than in "
                "one. Each record must be added once, whatever the batch.",
            )


def _look_at_answers(
    rehearsal: Rehearsal, where: str, found: _Findings
) -> None:
    """Compares the answers of the last round with those of its queries."""
    for pair in rehearsal.answers():
        answer, expected = (np.asarray(each, np.float64) for each in pair)
        known = np.isfinite(expected)
        close = _ADDITIVE * np.max(np.abs(expected), initial=0.0, where=known)
        if not np.allclose(answer, expected, 0, close, equal_nan=True):
            found.add(
                "noise",
                "the round",
                f"{where} gets other answers than its queries give to the same "
                "sum with the same seed.",
            )


def _look_at_noise(
    rehearsal: Rehearsal, batch: PhysicalStep, found: _Findings
) -> None:
    observed = rehearsal.run(batch)
    _look_at_answers(rehearsal, "a sample", found)
    if len(observed.mechanisms) != len(observed.events):
        return  # Another question has found this.
    asked = rehearsal.asked()
    measured = noise.measured_noise(asked, observed.mechanisms, observed.events)
    for query, sample, _ in asked:
        bare = all(isinstance(e, ledger.NonPrivateSum) for e in observed.events)
        if not bare and noise.repeats_over_states(query, sample):
            found.add(
                "noise",
                repr(query),
                "two trainings have the same noise: their difference bares "
                "what records add. Seeds must come from the operating system.",
            )
    for event, own in zip(observed.events, measured, strict=False):
        if own is None or not (own.draws or noise.is_known(event)):
            found.not_measured.append(
                f"the noise of {event.name!r}, a {type(event).__name__}: its "
                "answers do not follow its sum in a straight line."
            )
            continue
        departure = noise.departure(event, own)
        if departure is not None:
            found.add("noise", event.name, departure + ".")
        else:
            found.measured.append(
                f"{own.size:,} draws of the noise of {event.name!r} are "
                "as the ledger says."
            )
    known = [
        (event.name, own)
        for event, own in zip(observed.events, measured, strict=False)
        if own is not None
    ]
    for i, (name, own) in enumerate(known):
        for other, two in known[:i]:
            if noise.correlated(own, two):
                found.add(
                    "noise",
                    name,
                    f"it has the noise of {other!r}: one seed serves both.",
                )
