"""The records of a training: read, and capped before any sampling."""

import dataclasses
import os
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check
from keras_dp.ledger import PrivacyLedger
from keras_dp.ledger.places.place import place_of
from keras_dp.sampling import Sampler
from keras_dp.sampling.datasets import FiniteDataset, check_order
from keras_dp.sampling.kinds import is_dataset
from keras_dp.sampling.record_source import (
    RecordSpec,
    Source,
    as_arrays,
    is_source,
)
from keras_dp.sampling.users import capped_rows
from keras_dp.training import Augmentation
from keras_dp.training.data.mixtures import check_keeps_rows_apart
from keras_dp.training.data.record_map import RecordMap


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records for `make_private`, and what is known about them.

    Guarantee: at most `rows_per_unit` records of one unit are kept. Which ones
    are kept depends on nothing but random numbers.

    Attributes:
        data: `(x, y)` or `(x, y, sample_weight)`, arrays or nests of arrays of
            equal length; a finite `tf.data.Dataset` or `PyDataset`, which is
            read into memory (see `PoissonBatches.from_dataset`); or a sampler
            of `keras_dp.sampling`, which has a map and views of its own.
        unit: The person or thing that one record stands for, such as
            "patient". A new ledger records it. By default it is what is drawn:
            "example" or "user", or "unit" with `unit_ids`.
        unit_ids: Array `[N]` with the unit of each record, such as patient
            numbers. At most `rows_per_unit` records of each unit are kept,
            chosen at random.
        rows_per_unit: How many records one unit has at most, >= 1. Target and
            reports are then for all of them together. By default the value of
            an open ledger, else 1. With `unit_ids` and the path of a ledger it
            must be given.
        map: Function of TensorFlow from one record to another, which is
            called each time that a record is drawn; see `SamplerOptions`.
        augment: Random changes of the inputs of each record, anew each time
            that it is drawn: Keras layers such as `RandomFlip`, alone, in a
            list or in a `Sequential`, or a function of the inputs of one
            record. See `keras_dp.training.Augmentation`.
        views: How often a drawn record is changed, >= 1. The mean gradient of
            its views is clipped once, which costs no privacy, but as much time
            as so many records.

    Raises:
        TypeError: There is no data.
        ValueError: `views` is less than 1, or there is nothing to view; or an
            argument belongs to the sampler.

    >>> x, y = np.zeros([640, 3], "float32"), np.zeros([640, 1], "float32")
    >>> Records((x, y), unit="patient", rows_per_unit=2).unit
    'patient'
    """

    data: Any
    _: dataclasses.KW_ONLY
    unit: str | None = None
    unit_ids: Any = None
    rows_per_unit: int | None = None
    map: Any = None
    augment: Any = None
    views: int = 1

    def __post_init__(self) -> None:
        if self.data is None:
            raise TypeError(
                "`data` must be (x, y), or a PoissonBatches. Received: "
                "data=None. Pass the records to train on."
            )
        _check.integer_at_least(1, views=self.views)
        if isinstance(self.data, Sampler):
            _check_no_more(
                unit_ids=self.unit_ids,
                map=self.map,
                augment=self.augment,
                views=None if self.views == 1 else self.views,
            )
        elif self.views > 1 and self.map is None and self.augment is None:
            raise ValueError(
                "`views` must be 1 without `augment` or `map`: the views of a "
                f"record would be alike. Received: views={self.views!r}. Pass "
                'augment=keras.layers.RandomFlip("horizontal"), for instance.'
            )

    @classmethod
    def of(
        cls, data: Any, ledger: PrivacyLedger | str | os.PathLike[str]
    ) -> Self:
        """Returns records with the cap of their ledger, if they have no other.

        Args:
            data: As in `make_private`.
            ledger: As in `make_private`.
        """
        found = data if isinstance(data, cls) else cls(data)
        if found.rows_per_unit is None and isinstance(ledger, PrivacyLedger):
            own = ledger.header.rows_per_unit
            return dataclasses.replace(
                found, rows_per_unit=own if own > 1 else None
            )
        return found

    def read(self) -> "TrainingData":
        """Returns the records to sample from, with capped units.

        Raises:
            TypeError: `data` is of another kind, or cannot be capped; or `map`
                or `augment` is no function.
            ValueError: An argument is out of its range.
        """
        if isinstance(self.data, Sampler):
            return TrainingData(self.data, self.data.population_size)
        change = _changed_by(self.map, self.augment)
        _check_ids(self.data, self.unit_ids, self.rows_per_unit)
        records = stored(self.data)
        ids, left_out = None, 0
        if self.unit_ids is not None:
            left_out = len(Source(records))
            records, ids = _capped(records, self.unit_ids, self.rows_per_unit)
            left_out -= len(ids)
        population = len(Source(records))
        units = None if ids is None else len(np.unique(ids))
        return TrainingData(
            records, population, units, left_out, change, self.views
        )

    def opened(self, ledger: Any, drawn_unit: str) -> Any:
        """Returns the ledger, opened or created if it is a path.

        A new one has the name of its place as its data set, and the unit that
        is drawn, unless another one is named.

        Args:
            ledger: As in `make_private`.
            drawn_unit: As in `TrainingData`.

        Raises:
            ValueError: The ledger is open, and has another unit or
                `rows_per_unit`.
        """
        if isinstance(ledger, (str, os.PathLike)):
            place = place_of(ledger)
            dataset, unit = None, self.unit
            if not place.exists():
                dataset = place.short_name
                unit = drawn_unit if unit is None else unit
            return PrivacyLedger.open(
                ledger,
                dataset=dataset,
                unit=unit,
                rows_per_unit=self.rows_per_unit,
            )
        if not isinstance(ledger, PrivacyLedger):
            raise TypeError(
                "`ledger` must be a PrivacyLedger or the path of its file. "
                f"Received: ledger={_check.shown(ledger)}. Pass a path such as "
                '"run.ledger".'
            )
        for name in ("unit", "rows_per_unit"):
            value, own = getattr(self, name), getattr(ledger.header, name)
            if value not in (None, own):
                raise ValueError(
                    f"`{name}` must be {own!r}, as in the ledger. Received: "
                    f"{name}={value!r}. Leave `{name}` out, or open another "
                    "ledger."
                )
        return ledger


class TrainingData(NamedTuple):
    """Records to sample from.

    Attributes:
        records: Nest of arrays, a `RandomAccessSource`, or a `Sampler`.
        population: Number of records to sample from.
        units: Number of units that they belong to, `None` without ids.
        left_out: How many records of the data are not kept, because their
            unit has too many.
        map: The function of a record that is drawn, `None` for none.
        views: How often a drawn record is mapped.
    """

    records: Any
    population: int
    units: int | None = None
    left_out: int = 0
    map: Any = None
    views: int = 1

    @property
    def drawn_unit(self) -> str:
        """The unit that is drawn, and protected."""
        if isinstance(self.records, Sampler):
            return str(self.records.unit)
        return "example" if self.units is None else "unit"

    def units_of(self, rows_per_unit: int) -> int:
        """Returns the number of units, by their rows if it is not known."""
        if self.units is not None:
            return self.units
        return max(1, self.population // rows_per_unit)

    def check_size(self, batch_size: int | None) -> None:
        """Raises for an expected size that samples cannot have."""
        if batch_size is None:
            return
        _check.integer_at_least(1, batch_size=batch_size)
        if isinstance(self.records, Sampler):
            _check_no_more(batch_size=batch_size)
        if batch_size > self.population:
            raise ValueError(
                f"`batch_size` must be at most {self.population}, the number "
                f"of records. Received: batch_size={batch_size!r}."
            )


def stored(data: Any) -> Any:
    """Returns data as arrays, or as the source that they are."""
    if is_dataset(data):
        found = FiniteDataset(data, name="data")
        check_keeps_rows_apart(found.functions, "data")
        return found.stored()
    return data if is_source(data) else as_arrays(data)


def _changed_by(
    map: Any,  # noqa: A002 - as in tf.data.
    augment: Any,
) -> Any:
    """Returns the function of one record: the map, then the augmentation."""
    if augment is None:
        return map
    augmentation = Augmentation(augment)
    if map is None:
        return augmentation

    def both(*record: Any) -> Any:
        changed = map(*record)
        if isinstance(changed, tuple):
            return augmentation(*changed)
        return augmentation(changed)

    return both


def _check_no_more(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out with a sampler, which has its "
                "records, their map and its sample size. Received: "
                f"{name}={_check.shown(value)}. Give it to the sampler; an "
                "`augment` as map=keras_dp.training.Augmentation(...)."
            )


def build_for_records(
    model: keras.Model, samples: Sampler, *, eagerly: bool = False
) -> None:
    """Builds a model for the records of a sampler, unless it is built.

    Where it runs eagerly it is called with values, which are 0.
    """
    if model.built:
        return
    x, _, _ = keras.utils.unpack_x_y_sample_weight(RecordMap(samples).structure)
    rows = samples.physical_batch_size

    def tensor(spec: RecordSpec) -> Any:
        dtype = "string" if spec.dtype.kind in "OSU" else spec.dtype.name
        if eagerly:
            return tf.zeros((rows, *spec.shape), dtype)
        return keras.KerasTensor((rows, *spec.shape), dtype)

    model(keras.tree.map_structure(tensor, x))


def _check_ids(data: Any, unit_ids: Any, rows_per_unit: int | None) -> None:
    """Raises for ids without a cap, and where rows cannot be left out."""
    if unit_ids is None:
        return
    if rows_per_unit is None:
        raise ValueError(
            "`rows_per_unit` must be given with `unit_ids`: the most records "
            "of one unit that are kept. Received: rows_per_unit=None. A cap "
            "near the number that most units have costs little."
        )
    check_order(data, unit_ids=unit_ids)
    if is_source(data) and not is_dataset(data):
        raise TypeError(
            "`unit_ids` must be None for records that are read when drawn, of "
            f"which none can be left out. Received: {type(data).__name__}. "
            "Write files of the rows keras_dp.sampling.users.capped_rows("
            f"unit_ids, {rows_per_unit!r}), and pass these with "
            f"rows_per_unit={rows_per_unit!r} alone."
        )


def _capped(
    arrays: Any, unit_ids: Any, rows_per_unit: Any
) -> tuple[Any, np.ndarray]:
    records = len(Source(arrays))
    if len(unit_ids) != records:
        raise ValueError(
            f"`unit_ids` must have one entry for each of {records} records. "
            f"Received: {len(unit_ids)} entries."
        )
    rows = capped_rows(unit_ids, rows_per_unit)
    kept = keras.tree.map_structure(lambda leaf: leaf[rows], arrays)
    return kept, np.asarray(unit_ids)[rows]
