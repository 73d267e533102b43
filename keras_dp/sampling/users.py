"""The records of a user, or of another unit: capped, or drawn together."""

import functools
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp.ledger import PoissonUserSampling
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.draw import (
    Draw,
    Integers,
    RowsOfRecord,
    rows_that_hold,
)
from keras_dp.sampling.random_words import (
    Words,
    from_operating_system,
    random_subset,
)
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Sampler, SamplerOptions


class UserBatches(Sampler):
    """Draws whole users independently, anew for every round.

    A user who is drawn takes part with all records, or with `records_per_user`
    of them, drawn uniformly and anew, if the user has more. The records of a
    user are in consecutive rows of one physical batch. In `PrivateModel`, the
    mean gradient of a user's records is one record of the query, and is clipped
    as a whole. In `FederatedModel`, the record is the change of the model by
    the user's own training.

    Guarantee: in each round, each user takes part with `sampling_probability`,
    independently of all users and rounds. Adding or removing a user with all
    records moves a sum by at most the bound on one record. It leaves all others
    in their rows, unless the number of physical batches changes; see
    `in_random_rows`. The privacy unit is the user, whatever the number of
    records. The unit of the ledger must be "user", or another word for a unit
    with several records.

    Other samplers, and private preprocessing, treat each row as one user. If
    you use them with the same ledger, give them one row for each user. The
    ledger holds which rounds drew users, and reports say so.

    The number of users is used for `expected_sample_size` and the default
    `physical_batch_size`. As in `PoissonBatches`, it then counts as public.

    Attributes: those of `Sampler`, where a record of a sample is a user, and
        sampling_probability: Chance of each user to take part in a round.
        records_per_user: Largest number of records with which a user takes
            part.

    Source: McMahan et al. (2018), arXiv:1710.06963v3; Charles et al. (2024),
    arXiv:2407.07737v3, Algorithm 2 ("user-level sampling").

    >>> x, users = np.zeros([5, 3]), ["ann", "bob", "ann", "ann", "cid"]
    >>> batches = UserBatches(
    ...     x, user_ids=users, sampling_probability=0.5, records_per_user=2
    ... )
    >>> batches.population_size, batches.expected_sample_size
    (3, 1.5)
    >>> records, mask, ends_sample = next(iter(batches))
    >>> records.shape  # All users fit, with two rows each.
    (6, 3)
    """

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        user_ids: Any,
        sampling_probability: float,
        records_per_user: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        Args:
            data: See `PoissonBatches`.
            user_ids: Array `[N]` of integers or text, the user of each record.
            sampling_probability: In [2^-60, 1].
            records_per_user: The largest number of records with which a user
                takes part, at least 1. Do not choose it by a look at the data.
            **options: See `SamplerOptions`; `physical_batch_size` is a multiple
                of `records_per_user`.

        Raises:
            TypeError: See `PoissonBatches`.
            ValueError: See `PoissonBatches`; or `user_ids` are not one for
                each record.
        """
        _check.integer_at_least(1, records_per_user=records_per_user)
        users = unit_numbers(user_ids=user_ids)
        self.records_per_user = int(records_per_user)
        # In as few bytes as hold a number.
        self._users = users.astype(np.min_scalar_type(int(users.max())))
        arguments = {
            "sampling_probability": sampling_probability,
            "records_per_user": self.records_per_user,
        }
        of_users = functools.partial(_of_users, users=self._users)
        super().__init__(data, of_users, arguments, **options)

    @property
    def sampling_probability(self) -> float:
        """Chance of each user to take part in a round."""
        event: Any = self.draw.event
        return float(event.probability)

    @property
    def users_of_records(self) -> Integers:
        """The number of the user of each record, from 0 on, `[N]`. Secret."""
        return self._users.astype(np.int64)


def _of_users(
    records: int,
    users: Integers,
    sampling_probability: float,
    records_per_user: int,
) -> Draw:
    if len(users) != records:
        raise ValueError(
            "`user_ids` must name the user of each record. Received: "
            f"{len(users):,} ids for {records:,} records. Pass the ids in the "
            "order of the records."
        )
    count = int(users.max()) + 1
    draw = BernoulliDraw(count, sampling_probability)  # It checks.
    probability, rows = float(sampling_probability), records_per_user
    return Draw(
        count,
        PoissonUserSampling(probability, drawn_by_library=True),
        functools.partial(_drawn_users, draw, users, rows),
        expected_size=probability * count,
        most_rows=rows * rows_that_hold(count, probability),
        rounds_per_epoch=max(1, round(1 / probability)),
        unit="user",
        rows_of_record=RowsOfRecord(rows, bound_factor=1, averages=True),
    )


def _drawn_users(
    draw: BernoulliDraw, users: Integers, rows: int, words: Words
) -> Iterator[Integers]:
    """Yields the records of the users who are drawn, at most `rows` of each."""
    sizes, within = np.bincount(users), np.arange(rows)
    starts = np.cumsum(sizes) - sizes
    # The records of a user follow each other.
    records = np.argsort(users, kind="stable")
    while True:
        drawn = draw.indices(words)
        present = within < sizes[drawn][:, np.newaxis]
        # The records of a user come in random order, before padding.
        keys = words(present.size).reshape(present.shape) >> np.uint64(1)
        taken = np.argsort(np.where(present, keys, ~np.uint64(0)), axis=1)
        for row in np.flatnonzero(sizes[drawn] > rows):
            subset = random_subset(rows, int(sizes[drawn[row]]), words)
            taken[row] = subset[taken[row]]
        units = np.full(taken.shape, -1, np.int64)
        # A place that holds no record is not looked up.
        found = (starts[drawn][:, np.newaxis] + taken)[present]
        units[present] = records[found]
        yield units


def capped_rows(unit_ids: Any, rows_per_unit: int) -> Integers:
    """Returns the indices of records to keep, a limited number for each unit.

    If a unit has more than `rows_per_unit` records, a random subset is kept.

    Guarantee: adding or removing all records of one unit adds or removes at
    most `rows_per_unit` of the records that are kept, and changes nothing for
    other units: the records of each unit are chosen without a look at the
    others, by the operating system's generator.

    Args:
        unit_ids: Array `[N]` of integers or text, the unit of each record.
        rows_per_unit: The largest number of records to keep for a unit, >= 1.
            Do not choose it by a look at the data.

    Returns:
        Indices in `[0, N)`, ascending.

    Raises:
        ValueError: `unit_ids` does not have one integer or text per record.

    >>> rows = capped_rows(["ann", "bob", "ann", "ann", "cid"], 2)
    >>> len(rows), 1 in rows, 4 in rows
    (4, True, True)
    """
    _check.integer_at_least(1, rows_per_unit=rows_per_unit)
    units = unit_numbers(unit_ids=unit_ids)
    words = from_operating_system(len(units))
    order = np.lexsort((words, units))
    sizes = np.bincount(units)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(units)) - np.repeat(starts, sizes)
    return np.sort(order[place < rows_per_unit])


def unit_numbers(**ids: Any) -> Integers:
    """Returns the number of the unit of each record: 0, 1, 2, ...

    Ids of integers or text are one argument, by its name for messages.
    """
    ((name, given),) = ids.items()
    found = np.asarray(given)
    if found.ndim != 1 or not len(found):
        unit = name.removesuffix("_ids")
        raise ValueError(
            f"`{name}` must be an array of one axis, with the {unit} of each "
            f"record. Received: an array of shape {found.shape!r}."
        )
    kind = found.dtype.kind
    names_all = (
        kind in "iu"
        or (kind in "US" and not (found == found.dtype.type()).any())
        or (kind == "O" and all(map(_is_name, found)))
    )
    if not names_all:
        raise ValueError(
            f"`{name}` must hold integers or text, one for every record: "
            "records without a name could be of one person or of several. "
            f"Received: an array of {found.dtype}, with empty or other "
            "entries. Leave such records out."
        )
    return np.unique(found, return_inverse=True)[1]


def _is_name(found: Any) -> bool:
    is_text = isinstance(found, (str, bytes))
    return bool(found) if is_text else isinstance(found, int)
