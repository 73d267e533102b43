"""Releases of statistics: covered by the ledger first, computed afterwards."""

import abc
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from keras_dp import _check
from keras_dp.errors import PrivateTrainingError, noted_in
from keras_dp.keras_internals import print_line
from keras_dp.ledger import FullDataset, PrivacyLedger, Round, SumQueryEvent
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.noise import grid, seeds
from keras_dp.preprocessing.columns import (
    ColumnSchema,
    schema_of,
    with_capped_units,
)
from keras_dp.spending.run import RunDetails, new_run

Result = TypeVar("Result")
Floats = npt.NDArray[np.float64]


def released(
    ledger: PrivacyLedger,
    planned: Round,
    compute: Callable[[], Result],
    run: RunDetails | str | None = None,
) -> Result:
    """Records a round in the ledger, and then returns what `compute` returns.

    Guarantee: the round is durably in the ledger before `compute` is called. If
    `compute` raises, the round counts and nothing is returned. The planned
    round follows from public values alone, and `compute` releases its events
    and nothing else. Without room in the account, `compute` is not called.

    >>> from keras_dp.ledger import GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> planned = Round(FullDataset(), (GaussianSum("mean", 1.0, 2.0),))
    >>> released(ledger, planned, lambda: float(noised(np.zeros(()), 2.0))) != 0
    True
    >>> [(each.name, each.state, len(each)) for each in ledger.runs]
    [('preprocessing', 'finished', 1)]
    """
    _check.kind(PrivacyLedger, ledger=ledger)
    if ledger.header.unit == "microbatch":
        raise PrivateTrainingError(
            "The unit of the ledger must be what a row of the data is: a "
            "microbatch of several rows would move sums by several times their "
            "bound. Received: a ledger of unit 'microbatch'. Adapt the layers "
            "under a ledger of examples, or on public data."
        )
    with new_run(
        ledger,
        RunDetails.of(run),
        name="preprocessing",
        purpose="preprocessing",
        most=1,
    ) as writer:
        writer.cover(planned)
        try:
            return compute()
        except BaseException as error:
            with noted_in(error):
                writer.finish("failed")  # Also if somebody interrupts it.
            raise


def noised(
    sums: npt.NDArray[np.float64],
    stddev: float,
    mixed: Callable[[Floats], Floats] = lambda draws: draws,
) -> npt.NDArray[np.float64]:
    """Returns sums with Gaussian noise, from a fresh secret seed, on a grid.

    `mixed` makes the noise of independent draws, by a public linear map.
    """
    exact = tf.constant(sums, tf.float64)
    (steps,), _ = grid.draws([exact], stddev, seeds.fresh(None))
    noise = tf.constant(mixed(steps.numpy().astype(np.float64)), tf.float64)
    g = grid.spacing(stddev)
    answer = grid.with_noise(exact, noise, g, g)
    return np.asarray(answer.numpy(), np.float64)


class Adapter(abc.ABC):
    """Describes how a Keras preprocessing layer is adapted privately.

    A subclass is a frozen dataclass with public fields, one of which is
    `noise_multiplier`. One row of the data is one record.
    """

    __slots__ = ()

    noise_multiplier: float

    @abc.abstractmethod
    def events(self) -> tuple[SumQueryEvent, ...]:
        """Returns the events of `noised_layer`, from public values alone.

        Their names begin with "preprocessing/", as those of metrics begin with
        "metrics/" in a training: reports sum up what begins alike.
        """

    @abc.abstractmethod
    def noised_layer(self, data: Any) -> keras.Layer:
        """Returns the layer, computed from noised sums.

        The ledger must cover `events` before the call.
        """

    @abc.abstractmethod
    def check_schema(self, schema: ColumnSchema) -> None:
        """Raises unless the layer can be adapted to a column of this schema.

        It reads public facts alone, so that such a mistake spends no round.
        Other mistakes raise in the round, when the data are read.
        """

    def planned_round(self) -> Round:
        """Returns the round that `adapt` records, from public values alone."""
        return Round(FullDataset(drawn_by_library=True), self.events())

    def adapt(
        self,
        data: Any,
        ledger: PrivacyLedger,
        *,
        run: RunDetails | str | None = None,
        unit_ids: Any = None,
    ) -> Any:
        """Returns an ordinary Keras layer, adapted with noise.

        Guarantee: the values of the layer are computed from noised sums alone.
        The ledger durably holds the round before the sums are computed. If the
        computation raises, the round counts and nothing is returned.

        Args:
            data: An array, a table or a column, with one row for each record.
                Or a finite `tf.data.Dataset` or `keras.utils.PyDataset`, which
                is read once. If its elements are tuples, such as `(x, y)`, the
                first entry is used. Dtypes and shapes of records are public.
            ledger: The ledger that records the round. Use the ledger of the
                training, so that its report covers both.
            run: The name or the details of the run. By default,
                "preprocessing".
            unit_ids: The unit of each row, such as a user, if a unit may have
                several rows. A random choice of at most `rows_per_unit` of the
                ledger counts for each unit. Without ids, no unit may have more
                rows than that. `adapt` then prints or warns what it takes
                for granted.

        Raises:
            BudgetExceededError: The account has no room for the round.
            LedgerWriteError: The ledger cannot be written.
            PrivateTrainingError: The unit of the ledger is a microbatch.
            TypeError: The data have another dtype or kind. If an array has the
                dtype, or a `tf.data.Dataset` declares it, this spends no round.
                For lists and a `PyDataset`, the round counts.
            ValueError: The data have another shape. Rounds count as for
                `TypeError`. Or no key of a vocabulary passes the threshold; the
                round counts.
        """
        _check.kind(PrivacyLedger, ledger=ledger)
        schema = schema_of(data)
        if schema is not None:
            self.check_schema(schema)
        header = ledger.header
        if unit_ids is not None:
            data = with_capped_units(data, unit_ids, header.rows_per_unit)
        elif header.rows_per_unit > 1:
            logging.warning(
                "%s is adapted without `unit_ids`: epsilon holds only if one "
                "%s has at most %d rows of the data. Pass unit_ids=, which "
                "keeps no more.",
                type(self).__name__,
                header.unit,
                header.rows_per_unit,
            )
        elif header.unit not in UNITS_OF_ROWS:
            print_line(
                f"{type(self).__name__}: each row is taken to be one "
                f"{header.unit}. Pass unit_ids= if one has several."
            )
        return released(
            ledger, self.planned_round(), lambda: self.noised_layer(data), run
        )
