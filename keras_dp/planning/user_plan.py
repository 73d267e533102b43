"""Two ways to protect users with several records, compared at one target."""

import dataclasses
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.planning.calibration import calibrate_noise


class UserProtection(NamedTuple):
    """One way to protect users.

    Attributes:
        noise_multiplier: Stddev of the noise on the sum over the clip.
        denominator: Mean number of records, in the sense of the query, of a
            round.
    """

    noise_multiplier: float
    denominator: float

    @property
    def noise(self) -> float:
        """Stddev of the noise on the average, over the clip."""
        return self.noise_multiplier / self.denominator


@dataclasses.dataclass(frozen=True, slots=True)
class UserPlan:
    """The noise of both ways, for as many gradients a round.

    Attributes:
        users: Whole users are drawn (`UserBatches`), and a user's mean gradient
            is clipped.
        examples: Single records are drawn (`PoissonBatches`) of data with at
            most `records_per_user` of each user, and clipped one by one; the
            guarantee is for all records of a user, as a group.
        records_per_user: The same for both.
    """

    users: UserProtection
    examples: UserProtection
    records_per_user: int

    @property
    def break_even(self) -> float:
        """The length of a user's mean gradient at which both are as noisy.

        In lengths of single gradients: both ways have the same noise, relative
        to what they clip, if the mean over a user's records is so much as long
        as the gradient of one record. If it is shorter, `users` are less noisy.
        It is at least `1 / sqrt(records_per_user)` if the gradients of a user
        are not opposed to each other, and 1 if they are alike.
        """
        return self.examples.noise / self.users.noise

    def __str__(self) -> str:
        """Returns `as_text()`."""
        return self.as_text()

    def as_text(self) -> str:
        """Returns lines for a person."""
        lines = ["drawn     noise multiplier  denominator  noise/clip"]
        for name, each in (("users", self.users), ("examples", self.examples)):
            lines.append(
                f"{name:8}  {each.noise_multiplier:16.4g}  "
                f"{each.denominator:11,.6g}  {each.noise:10.3g}"
            )
        if self.break_even >= 1:
            lines.append("Draw users: they are less noisy in any case.")
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

    Both draw each user, or each record, with the same probability, and compute
    on `users_per_round * records_per_user` gradients a round on average, if all
    users have that many records.

    Args:
        population: Number of users, >= 1.
        records_per_user: The most with which a user takes part, >= 1.
        users_per_round: Mean number of users of a round, in (0, population].
        rounds: >= 1.
        target_epsilon: For a user with all records, > 0.
        delta: In (0, 1).
        accountant: The tightest that can replay such rounds by default.
        neighbours: The adjacency relation.

    Raises:
        CalibrationError: No noise meets the target.
        ValueError: A number is out of its range.

    Source: Charles et al. (2024), arXiv:2407.07737v3, who call them user-level
    and example-level sampling. We price a group of records by its dominating
    pair (`group_epsilon`).

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
            f"`users_per_round` must be at most population={population!r}. "
            f"Received: users_per_round={users_per_round!r}. It is the number "
            "of users that a round is expected to sample."
        )

    def noise(group_size: int) -> float:
        return calibrate_noise(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=users_per_round / population,
            rounds=rounds,
            accountant=accountant,
            neighbours=neighbours,
            group_size=group_size,
        )

    return UserPlan(
        UserProtection(noise(1), users_per_round),
        UserProtection(
            noise(records_per_user), users_per_round * records_per_user
        ),
        records_per_user,
    )
