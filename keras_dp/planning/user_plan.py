"""Compares two ways to protect users with several records at one target."""

import dataclasses
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.planning.calibration import calibrate_noise


class UserProtection(NamedTuple):
    """One way to protect users.

    Attributes:
        noise_multiplier: The standard deviation of the noise on the sum,
            divided by the clipping norm.
        denominator: The expected number of gradients that a round clips: one
            for each sampled user, or one for each sampled record.
    """

    noise_multiplier: float
    denominator: float

    @property
    def noise(self) -> float:
        """The stddev of the noise on the average over the clipping norm."""
        return self.noise_multiplier / self.denominator


@dataclasses.dataclass(frozen=True, slots=True)
class UserPlan:
    """The noise of two ways to protect users.

    Attributes:
        users: A round samples whole users (`UserBatches`), and clips the mean
            gradient of each.
        examples: A round samples single records (`PoissonBatches`), and clips
            the gradient of each. The data have at most `records_per_user`
            records of each user. The guarantee is for all records of a user,
            as a group.
        records_per_user: The largest number of records of a user.
    """

    users: UserProtection
    examples: UserProtection
    records_per_user: int

    @property
    def break_even(self) -> float:
        """The relative length of a user's mean gradient where noise is equal.

        The relative length is the norm of the mean gradient over a user's
        records, divided by the norm of the gradient of one record. At this
        length both ways have the same noise, relative to what they clip. At a
        smaller length, `users` has less. For gradients of equal norms, the
        relative length is at least `1 / sqrt(records_per_user)` if no two of
        them have a negative inner product, and 1 if they are equal.
        """
        return self.examples.noise / self.users.noise

    def __str__(self) -> str:
        """Returns `as_text()`."""
        return self.as_text()

    def as_text(self) -> str:
        """Returns both ways as a table, with the way to choose."""
        lines = ["drawn     noise multiplier  denominator  noise/clip"]
        for name, each in (("users", self.users), ("examples", self.examples)):
            lines.append(
                f"{name:8}  {each.noise_multiplier:16.4g}  "
                f"{each.denominator:11,.6g}  {each.noise:10.3g}"
            )
        if self.break_even >= 1:
            lines.append("Draw users: their noise is never larger.")
        else:
            lines.append(
                "Draw users if the mean gradient of a user is less than "
                f"{self.break_even:.2g} times as long as that of one record."
            )
        return "\n".join(lines)


def plan_users(
    population: int,
    *,
    records_per_user: int,
    users_per_round: float,
    rounds: int,
    target_epsilon: float,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> UserPlan:
    """Returns the noise that each way to protect users needs.

    One way samples users and the other samples records, with the same
    probability. If every user has `records_per_user` records, both compute on
    `users_per_round * records_per_user` gradients a round on average.

    Args:
        population: The number of users, >= 1.
        records_per_user: The largest number of records of a user that take
            part, >= 1.
        users_per_round: The expected number of users in a round, in
            (0, population].
        rounds: >= 1.
        target_epsilon: The target for a user with all their records, > 0.
        delta: In (0, 1).
        accountant: By default, the tightest that can replay these rounds.
        neighbours: The adjacency relation. By default, the strongest that
            all rounds support.

    Raises:
        CalibrationError: No noise multiplier up to 1e12 meets the target.
        ValueError: An argument is out of its range.

    Source: Charles et al. (2024), arXiv:2407.07737v3, who call the two ways
    user-level and example-level sampling. The loss of a user's records is that
    of `groups.Group`.

    >>> plan = plan_users(100_000, records_per_user=8, users_per_round=500,
    ...                   rounds=2000, target_epsilon=4.0, delta=1e-6)
    >>> plan.users.noise_multiplier < plan.examples.noise_multiplier
    True
    >>> round(plan.break_even, 2)
    0.42
    """
    _check.integer_at_least(
        1, population=population, records_per_user=records_per_user
    )
    _check.finite_positive(users_per_round=users_per_round)
    if users_per_round > population:
        raise ValueError(
            "`users_per_round` must be at most `population`. Received: "
            f"users_per_round={users_per_round!r}, population={population!r}. "
            "Give the expected number of users in a round."
        )

    def noise(records: int) -> float:
        return calibrate_noise(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=users_per_round / population,
            rounds=rounds,
            accountant=accountant,
            neighbours=neighbours,
            units=records,
        )

    return UserPlan(
        UserProtection(noise(1), users_per_round),
        UserProtection(
            noise(records_per_user), users_per_round * records_per_user
        ),
        records_per_user,
    )
