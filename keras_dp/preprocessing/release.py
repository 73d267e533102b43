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
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import FullDataset, PrivacyLedger, Round, SumQueryEvent
from keras_dp.noise import seeds
from keras_dp.preprocessing.schema import Schema, schema_of
from keras_dp.preprocessing.units import with_capped_units
from keras_dp.training import RunDetails
from keras_dp.training.recording import RoundRecorder
from keras_dp.training.run import TrainingRun

Result = TypeVar("Result")

# As "metrics/" in a training: reports sum up what begins alike.
_PREFIX = "preprocessing/"


def released(
    ledger: PrivacyLedger,
    planned: Round,
    compute: Callable[[], Result],
    run: RunDetails | str | None = None,
) -> Result:
    """Returns what `compute` returns, once the ledger covers the round.

    Guarantee: the round is durably in the ledger before `compute` is called,
    and stays there whatever happens. After an exception nothing is returned,
    and the round counts.

    Args:
        ledger: Opened for writing. An account that pays must have room.
        planned: The round, from public values alone.
        compute: Releases what the round says, and nothing else, with noise of
            the ledger's generator.
        run: A name, or details of the run; "preprocessing" by default.

    Raises:
        BudgetExceededError: The account has no room for the round. Nothing was
            computed.
        LedgerError: The ledger is closed.
        LedgerWriteError: The ledger cannot be written.
        PrivateTrainingError: The ledger's unit is a microbatch.

    >>> from keras_dp.ledger import GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> planned = Round(FullDataset(), (GaussianSum("mean", 1.0, 2.0),))
    >>> released(ledger, planned, lambda: float(gaussian_noise((), 2.0))) != 0
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
    recorder = RoundRecorder(
        TrainingRun(
            ledger,
            RunDetails.of(run),
            name="preprocessing",
            purpose="preprocessing",
            most=1,
        ),
        plan=lambda: planned,
        events_of=lambda events: tuple(events),
    )
    recorder.cover()
    try:
        with seeds.drawing_with(ledger.header.generator):
            result = compute()
        recorder.released(planned.queries)
    except BaseException:
        recorder.end(failed=True)
        raise
    recorder.end()
    return result


def gaussian_noise(
    shape: tuple[int, ...], stddev: float
) -> npt.NDArray[np.float64]:
    """Returns independent Gaussian noise, from a fresh secret seed.

    Args:
        shape: The shape of the result.
        stddev: >= 0.
    """
    like = tf.zeros(shape, tf.float64)
    noise = seeds.normal(
        like, seeds.fresh(None), tf.constant(stddev, tf.float64)
    )
    return np.asarray(noise.numpy(), np.float64)


class Adapter(abc.ABC):
    """Says how a Keras preprocessing layer is adapted privately.

    A subclass is a frozen dataclass with public fields, among them
    `noise_multiplier`. One row of the data is one record.
    """

    __slots__ = ()

    noise_multiplier: float

    @abc.abstractmethod
    def events(self, prefix: str = "") -> tuple[SumQueryEvent, ...]:
        """Returns what `noised_layer` releases, from public values alone.

        Args:
            prefix: Stands before the names of the events.
        """

    @abc.abstractmethod
    def noised_layer(self, data: Any) -> keras.Layer:
        """Returns the layer from noised sums; `events` must be covered.

        Args:
            data: See `adapt`.
        """

    def check_data(self, data: Any) -> None:
        """Raises where the schema of data shows that no round can do.

        It looks at what is public alone, so that a mistake spends no round.
        Other mistakes are refused in the round, when the data are read.

        Args:
            data: See `adapt`.
        """
        schema = schema_of(data)
        if schema is not None:
            self.check_schema(schema)

    def check_schema(self, schema: Schema) -> None:
        """Raises unless the layer can be adapted to a column of this schema.

        Args:
            schema: Dtype and shape of the column.
        """
        del schema

    def planned_round(self) -> Round:
        """Returns the round that `adapt` records: its price is known before."""
        return Round(FullDataset(drawn_by_library=True), self.events(_PREFIX))

    def adapt(
        self,
        data: Any,
        ledger: PrivacyLedger,
        *,
        run: RunDetails | str | None = None,
        unit_ids: Any = None,
    ) -> Any:
        """Returns an ordinary Keras layer, adapted with noise.

        Guarantee: what the layer holds is computed from noised sums alone, and
        the ledger durably holds their round before the sums are computed. After
        an exception the round counts, and nothing is returned.

        Args:
            data: Array, table or column, one row a record; or a finite
                `tf.data.Dataset` or `keras.utils.PyDataset`, which is read
                once; of a tuple `(x, y)` the first entry counts. Its dtypes and
                the shapes of its records are public.
            ledger: Where the round is recorded: the ledger of the training, so
                that its report covers both.
            run: The name of the run, or its details; "preprocessing" by
                default.
            unit_ids: The unit of each row, where the ledger's unit may have
                several, such as a user. As many rows of a unit count as the
                ledger's `rows_per_unit`, chosen at random. Without ids, no unit
                must have more of them.

        Raises:
            BudgetExceededError: The account has no room for the round.
            LedgerWriteError: The ledger cannot be written.
            TypeError: The data are of another dtype or kind. This spends no
                round where an array has it, or a `tf.data.Dataset` declares it;
                the next one alike. Of lists and a `PyDataset` the round counts.
            ValueError: The data do not have the shape that is needed.
        """
        _check.kind(PrivacyLedger, ledger=ledger)
        self.check_data(data)
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
        return released(
            ledger, self.planned_round(), lambda: self.noised_layer(data), run
        )
