"""Runs rounds on neighbouring samples and compares them with the ledger."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp.auditing import draw, noise, sensitivity
from keras_dp.auditing.audited_round import (
    AuditedRound,
    CheckReport,
    Finding,
    Observation,
    audited,
)
from keras_dp.auditing.neighbours import (
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
from keras_dp.training.data.batches import StepBatch
from keras_dp.training.data.data_adapter import DataAdapter

# Sums over parts add up to the sum of the sample, to the accuracy of float32
# and of their grid.
_ADDITIVE = 1e-3
_CHANGES_OTHERS = (
    " changes what the others contribute: the sum over a sample is not that "
    "over its parts. Look for what is computed over the batch, in layers, the "
    "loss, metrics or the query."
)
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
    of another record, or padding. The engine, the queries and the optimizer are
    those of `fit`. Weights and states are restored afterwards. The questions
    are:

    * sensitivity: does a record move the sum of each query by at most the bound
      in the ledger?
    * independence: does a record leave the contributions of others unchanged?
    * flow: if the private answers are equal, are weights, states, seeds and
      logs equal too, for any record?
    * noise: does the noise have the distribution in the ledger, and is it new
      in each round and for each query?
    * record: is the round that is planned for the ledger the one that is
      released, and is the ledger of the training intact?
    * draw: does the sampler follow its sampling event?

    A report without findings does not prove privacy: the check uses a few
    records and the present state of the model. Metrics that have no noise are
    not its question: `fit` warns of them. Each of its statistical tests
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
    training = private_model._training(DataAdapter(_source(batches)))
    adapter = training.adapter
    if training.replicas.are_many:
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
    group = adapter.rows_of_record.rows
    first = _first_batch(adapter)
    batch = small_batch(first, group, group * records)
    try:
        with audited(private_model, training, first, batch) as round_:
            questions = _Questions(round_, batch, adapter, found)
            questions.of_the_record()
            questions.of_neighbours()
            if isinstance(adapter.source, Sampler):
                questions.of_split_samples()
            questions.of_the_noise()
    except (
        GradientCheckError,
        PrivateTrainingError,
        UnsupportedLayerError,
    ) as refusal:
        found.add("refusal", private_model.model.name, str(refusal))
    return CheckReport(
        tuple(found.findings),
        tuple(found.measured),
        tuple(found.not_measured),
    )


class _Findings:
    """Collects findings, each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.measured: list[str] = []
        self.not_measured: list[str] = []

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


def _first_batch(adapter: DataAdapter) -> StepBatch:
    source = adapter.source
    if adapter.is_sampler:
        # An empty sample shows nothing.
        for batch in adapter.physical_batches:
            if bool(tf.reduce_any(batch.mask)):
                return batch
    if isinstance(source, tf.data.Dataset):
        source = next(iter(source))
    return adapter.batch_from(source)


def _look_at_ledger(private_model: PrivateModel, found: _Findings) -> None:
    """Verifies the chain of hashes of the ledger itself."""
    own = private_model.optimizer.required_ledger()
    if not isinstance(own, ledger.PrivacyLedger):
        return
    try:
        own.verify()
    except LedgerError as error:
        found.add("record", repr(own), str(error))


class _Questions:
    """Asks the questions of one round."""

    def __init__(
        self,
        round_: AuditedRound,
        batch: StepBatch,
        adapter: DataAdapter,
        found: _Findings,
    ) -> None:
        self._round, self._batch, self._found = round_, batch, found
        self._events = round_.planned.queries
        self._sampling = adapter.sampling_of(batch.pass_)
        self._group = adapter.rows_of_record.rows
        self._own = _rows_of_unit(adapter)
        self._shares: dict[str, float] = {}

    def of_the_record(self) -> None:
        """Compares what the ledger will hold with what is released."""
        add, sampling = self._found.add, self._sampling
        if self._round.planned.sampling != sampling:
            add(
                "record",
                "the sample",
                f"it was drawn by {sampling!r}, and the ledger would say "
                f"{self._round.planned.sampling!r}.",
            )
        if not self._round.keeps_to_plan:
            add(
                "record",
                "the release",
                "it has another event than was planned: its answers are "
                "withheld. Let `planned_event` and `get_noised_result` of the "
                "query agree.",
            )
        for event in self._events:
            if isinstance(event, ledger.NonPrivateSum):
                add(
                    "noise",
                    event.name,
                    "the sum has neither bound nor noise: epsilon is infinite.",
                )
        released = sum(
            len(query.mechanisms(sums, state))
            for query, sums, state in self._round.queries
        )
        if released != len(self._events):
            add(
                "record",
                "the events",
                f"{released} sums are released, and the ledger would hold "
                f"{len(self._events)} events. Let `mechanisms` and "
                "`ledger_events` of the query agree.",
            )

    def of_neighbours(self) -> None:
        """Puts other records in the place of the first unit, and the last."""
        count = len(np.asarray(self._batch.mask))
        for own in (np.arange(self._own), np.arange(count - self._own, count)):
            base = self._round.observed(without(self._batch, own))
            for name, changed, present in neighbours(self._batch, own):
                other, where = self._round.observed(changed), f"a record {name}"
                self._compare_sums(base, other, where, present)
                self._compare_flow(base, other, where)
                if present and len(own) == self._group:
                    alone = self._round.observed(only(changed, own))
                    message = where + _CHANGES_OTHERS
                    self._compare_parts(message, other, base, alone)
            unit = own[0] - own[0] % self._group + np.arange(self._group)
            for loose in (False, True):
                parts = (
                    self._round.observed(step, loose=loose)
                    for step in (
                        self._batch,
                        without(self._batch, unit),
                        only(self._batch, unit),
                    )
                )
                self._compare_parts("a record" + _CHANGES_OTHERS, *parts)
        for name, share in self._shares.items():
            self._found.measured.append(
                f"a record moved the sum of {name!r} by at most "
                f"{100 * share:.3g} % of its bound."
            )

    def of_split_samples(self) -> None:
        """Asks of a sample in three physical batches."""
        count = len(np.asarray(self._batch.mask))
        rows = np.arange(count).reshape(-1, self._group)
        # The first batch may be empty, the others not.
        *_, middle, last = parts = np.array_split(rows[::-1], 3)[::-1]

        def split(batch: StepBatch) -> list[StepBatch]:
            masks = [only(batch, part.ravel()).mask for part in parts]
            return [
                batch._replace(mask=tf.logical_and(mask, batch.mask))
                for mask in masks
            ]

        whole = self._round.observed(self._batch)
        apart = self._round.observed(*split(self._batch))
        where = "a sample in three physical batches, and not in one,"
        # Each physical batch moves the seeds of layers.
        seeds, others = _seeds_apart(whole)
        seeds_apart, others_apart = _seeds_apart(apart)
        self._compare_flow(others, others_apart, where)
        if seeds == seeds_apart:
            self._compare_parts(
                "a sample in three physical batches has another sum than in "
                "one. Each record must be added once, whatever the batch.",
                whole,
                apart,
            )
        for part in (middle, last):
            own = part[0, : self._own]
            base = self._round.observed(*split(without(self._batch, own)))
            for name, changed, present in neighbours(self._batch, own):
                if name not in _IN_SPLIT_SAMPLES:
                    continue
                other = self._round.observed(*split(changed))
                place = f"a record {name}, in a later physical batch,"
                self._compare_sums(base, other, place, present)
                self._compare_flow(base, other, place)

    def of_the_noise(self) -> None:
        """Compares draws of the noise with the events."""
        found, events = self._found, self._events
        mechanisms = self._round.observed(self._batch).mechanisms
        if len(mechanisms) != len(events):
            return  # Another question has found this.
        bare = all(isinstance(each, ledger.NonPrivateSum) for each in events)
        for query, sums, _ in self._round.queries:
            if not bare and noise.repeats_over_states(query, sums):
                found.add(
                    "noise",
                    repr(query),
                    "two trainings have the same noise: their difference bares "
                    "what records add. Seeds must come from the operating "
                    "system.",
                )
        known: list[tuple[str, noise.Measured]] = []
        for event, own in zip(
            events,
            noise.measured_noise(self._round.queries, events),
            strict=True,
        ):
            if own is not None:
                for name, other in known:
                    if noise.correlated(own, other):
                        found.add(
                            "noise",
                            event.name,
                            f"it has the noise of {name!r}: one seed serves "
                            "both.",
                        )
                known.append((event.name, own))
            if own is None or not (own or noise.is_known(event)):
                found.not_measured.append(
                    f"the noise of {event.name!r}, a {type(event).__name__}: "
                    "its answers do not follow its sum in a straight line."
                )
                continue
            departure = noise.departure(event, own)
            if departure is not None:
                found.add("noise", event.name, departure + ".")
            else:
                size = sum(draws.size for draws in own)
                found.measured.append(
                    f"{size:,} draws of the noise of {event.name!r} are "
                    "as the ledger says."
                )

    def _compare_sums(
        self, base: Observation, other: Observation, where: str, present: bool
    ) -> None:
        for one, two, event in zip(
            base.mechanisms, other.mechanisms, self._events, strict=False
        ):
            sums = sensitivity.sum_of(one), sensitivity.sum_of(two)
            if not present:
                apart = sensitivity.distance(*sums)
                if not apart <= 1e-5 * max(1.0, sensitivity.norm(sums[0])):
                    self._found.add(
                        "sensitivity",
                        event.name,
                        f"{where} moves its sum: padding counts. Give it to "
                        "the query with the mask of the batch.",
                    )
                continue
            share = sensitivity.share_of_bound(
                event, *sums, sensitivity.rounding_of(one)
            )
            if share is None:
                continue
            known = self._shares.get(event.name, 0.0)
            self._shares[event.name] = (
                share if np.isnan(share) else max(known, share)
            )
            if not sensitivity.is_kept(share):
                self._found.add(
                    "sensitivity",
                    event.name,
                    f"{where} moves its sum by {share:.4g} times the bound in "
                    f"the ledger, {_bound(event)}{_largest(*sums)}. Clip the "
                    "record in the query, after everything that makes it, and "
                    "count what is not finite as zero.",
                )

    def _compare_flow(
        self, base: Observation, other: Observation, where: str
    ) -> None:
        for name, digest in base.moved.items():
            if other.moved[name] != digest:
                self._found.add(
                    "flow",
                    name,
                    f"{where} moves it past the noise: it differs where all "
                    "private answers are the same. What follows the data must "
                    "go through a query.",
                )
        for name, value in base.shown.items():
            if not np.array_equal(other.shown[name], value, equal_nan=True):
                self._found.add(
                    "flow",
                    f"logs[{name!r}]",
                    f"{where} moves what callbacks see, past the noise.",
                )

    def _compare_parts(
        self, message: str, whole: Observation, *parts: Observation
    ) -> None:
        """Compares a sum over a sample with those over its parts."""
        for event, *mechanisms in zip(
            self._events,
            *(each.mechanisms for each in (whole, *parts)),
            strict=False,
        ):
            sums = [sensitivity.sum_of(each) for each in mechanisms]
            size = np.max([sensitivity.norm(each) for each in sums])
            if not np.isfinite(size):
                continue  # The question of sensitivity covers this.
            apart = sensitivity.norm(
                [leaf - sum(own) for leaf, *own in zip(*sums, strict=True)]
            )
            rounding = sensitivity.rounding_of(mechanisms[0])
            if not apart <= _ADDITIVE * size + rounding:
                self._found.add("independence", event.name, message)


def _rows_of_unit(adapter: DataAdapter) -> int:
    """Returns how many rows one unit has: one example among several has one."""
    rows = adapter.rows_of_record
    return rows.views if adapter.unit == "example" else rows.rows


def _bound(event: ledger.SumQueryEvent) -> str:
    bound = getattr(event, "l2_norm_bound", None)
    return "its vectors" if bound is None else f"{bound:.4g}"


def _largest(one: sensitivity.Sum, two: sensitivity.Sum) -> str:
    """Describes which part of the record moved most, if it has several."""
    moves = [np.linalg.norm(a - b) for a, b in zip(one, two, strict=True)]
    if len(moves) < 2:
        return ""
    worst = int(np.argmax(np.nan_to_num(moves, nan=np.inf)))
    return f", most of it in part {worst} of {len(moves)} of the record"


def _seeds_apart(
    observed: Observation,
) -> tuple[dict[str, str], Observation]:
    """Returns the seeds of layers, and an observation without them."""
    seeds = {
        name: digest
        for name, digest in observed.moved.items()
        if name.endswith("seed_generator_state")
    }
    others = {k: v for k, v in observed.moved.items() if k not in seeds}
    return seeds, observed._replace(moved=others)
