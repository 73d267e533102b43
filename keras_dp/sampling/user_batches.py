"""Samples of users, each with some of the user's records."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp._override import override
from keras_dp.ledger import PoissonUserSampling
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.layouts import Layout, rows_that_hold
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_words import Words, random_subset
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Draw, Pass, Sampler
from keras_dp.sampling.units import unit_numbers

Integers = npt.NDArray[np.int64]


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
        physical_batch_size: int | None = None,
        rounds_per_epoch: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        views: int = 1,
        seed: int | None = None,
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        Args:
            data: See `PoissonBatches`.
            user_ids: Array `[N]` of integers or text, the user of each record.
            sampling_probability: In [2^-60, 1].
            records_per_user: The largest number of records with which a user
                takes part, at least 1. Do not choose it by a look at the data.
            physical_batch_size: Number of rows of a physical batch, a multiple
                of `records_per_user`. By default at least 99.99 % of the
                samples fit into one batch.
            rounds_per_epoch: At least 1, by default 1 / `sampling_probability`.
            map: See `PoissonBatches`.
            views: Must be 1, because a user has several rows already.
            seed: See `PoissonBatches`.

        Raises:
            TypeError: See `PoissonBatches`.
            ValueError: See `PoissonBatches`; or `user_ids` are not one for
                each record.
        """
        _check.probability(sampling_probability=sampling_probability)
        _check.integer_at_least(1, records_per_user=records_per_user)
        super().__init__(data, map=map, views=views, seed=seed)
        if self.views > 1:
            raise ValueError(
                "`views` must be 1 for users, whose records are averaged "
                f"already. Received: views={views!r}. Raise records_per_user, "
                "or draw single records by PoissonBatches."
            )
        numbers = unit_numbers(user_ids=user_ids)
        if len(numbers) != self._whole_size:
            raise ValueError(
                "`user_ids` must name the user of each record. Received: "
                f"{len(numbers):,} ids for {self._whole_size:,} records. Pass "
                "the ids in the order of the records."
            )
        self._users = Users(
            numbers, float(sampling_probability), int(records_per_user)
        )
        self.records_per_user = int(records_per_user)
        # In as few bytes as hold a number.
        self._users_of_records = numbers.astype(
            np.min_scalar_type(self._users.count)
        )
        self._set_sizes(
            physical_batch_size,
            rounds_per_epoch,
            default=(
                self._users.most_rows,
                max(1, round(1 / sampling_probability)),
            ),
            rows=self.records_per_user,
        )

    @property
    def sampling_probability(self) -> float:
        """Chance of each user to take part in a round."""
        return self._users.sampling_probability

    @property
    @override
    def population_size(self) -> int:
        """The number of users."""
        return self._users.count

    @property
    @override
    def expected_sample_size(self) -> float:
        """The mean number of users in a round."""
        return self.sampling_probability * self.population_size

    @property
    @override
    def unit(self) -> str:
        return "user"

    @property
    def users_of_records(self) -> Integers:
        """The number of the user of each record, from 0 on, `[N]`. Secret."""
        return self._users_of_records.astype(np.int64)

    @property
    @override
    def microbatches(self) -> Layout:
        """The layout of users in rows."""
        return self._users

    @property
    def sampling_event(self) -> PoissonUserSampling:
        """The event that a ledger records for the draw of each round."""
        return PoissonUserSampling(
            self.sampling_probability, drawn_by_library=True
        )

    @override
    def sampling_of(self, of: Pass) -> PoissonUserSampling:
        return self.sampling_event

    def __repr__(self) -> str:
        return (
            f"<UserBatches of {self.population_size:,} users, "
            f"sampling_probability={self.sampling_probability:.6g}, "
            f"{self.expected_sample_size:.6g} expected in a sample, "
            f"records_per_user={self.records_per_user}, "
            f"physical_batch_size={self.physical_batch_size}>"
        )

    @override
    def _draws(self, words: Words, places: Words) -> Iterator[Draw]:
        of = Pass.new()
        while True:
            yield Draw(
                self._users.draw(self.physical_batch_size, words, places), of
            )


class Users(Layout):
    """Draws whole users, each with a limited number of records.

    Attributes:
        count: Number of users.
    """

    bound_factor = 1
    averages = True

    def __init__(
        self, numbers: Integers, probability: float, records_per_user: int
    ) -> None:
        """Draws nothing.

        Args:
            numbers: The user of each record, from 0 on, without gaps.
            probability: Chance of a user to take part.
            records_per_user: Most records with which a user takes part.
        """
        sizes = np.bincount(numbers)
        self.count = len(sizes)
        super().__init__(BernoulliDraw(self.count, probability))
        self.rows, self.size = records_per_user, 1.0
        self.most_rows = self.rows * rows_that_hold(self.count, probability)
        self._sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        # The records of a user follow each other.
        self._records = np.argsort(numbers, kind="stable")

    @override
    def draw(
        self, physical_batch_size: int, words: Words, places: Words
    ) -> Integers:
        users = self._draw.indices(words)
        sizes, starts = self._sizes[users], self._starts[users]
        within = np.arange(self.rows)
        present = within < sizes[:, np.newaxis]
        # The records of a user come in random order, before padding.
        keys = words(present.size).reshape(present.shape) >> np.uint64(1)
        taken = np.argsort(np.where(present, keys, ~np.uint64(0)), axis=1)
        for row in np.flatnonzero(sizes > self.rows):
            subset = random_subset(self.rows, int(sizes[row]), words)
            taken[row] = subset[taken[row]]
        records = np.full(taken.shape, -1, np.int64)
        # A place that holds no record is not looked up.
        found = (starts[:, np.newaxis] + taken)[present]
        records[present] = self._records[found]
        return in_random_rows(records, physical_batch_size, places)
