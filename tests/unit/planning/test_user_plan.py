"""Users as units, or as groups of records: which is less noisy."""

import math

import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.planning import plan_users

TARGET = {"target_epsilon": 2.0, "delta": 1e-6}


def planned(**changes):
    arguments = {
        "records_per_user": 4,
        "users_per_round": 50,
        "rounds": 100,
        **TARGET,
    }
    return plan_users(1000, **(arguments | changes))


class TestBothWays:
    def test_meet_the_target_for_a_user(self) -> None:
        plan = planned()

        def rounds(multiplier):
            event = GaussianSum("all", 1.0, multiplier)
            return [(Round(PoissonSampling(0.05), (event,)), 100)]

        of_users = rounds(plan.users.noise_multiplier)
        of_records = rounds(plan.examples.noise_multiplier)
        epsilons = (
            Fourier().epsilon(of_users, delta=1e-6),
            Fourier().epsilon(of_records, units=4, delta=1e-6),
        )
        assert epsilons == pytest.approx((2.0, 2.0), rel=1e-5)
        assert max(epsilons) <= 2.0

    def test_compute_on_as_many_gradients(self) -> None:
        plan = planned()

        assert plan.users.denominator == 50
        assert plan.examples.denominator == 200

    def test_are_the_same_for_single_records(self) -> None:
        plan = planned(records_per_user=1)

        assert plan.users == plan.examples
        assert plan.break_even == 1

    def test_are_the_same_without_sampling(self) -> None:
        """A group of k moves a Gaussian sum by k clips: its mean by one."""
        assert planned(users_per_round=1000).break_even == pytest.approx(1)

    @pytest.mark.standard
    def test_break_even_falls_where_sampling_parts_a_group(self) -> None:
        found = [planned(records_per_user=k).break_even for k in (1, 2, 8)]

        assert found == sorted(found, reverse=True)
        assert found[-1] > 1 / math.sqrt(8)


class TestTheText:
    def test_says_what_decides(self) -> None:
        text = str(planned())

        assert "Draw users if the mean gradient of a user is less than" in text
        assert "Draw users: their noise is never larger" in str(
            planned(records_per_user=1)
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"records_per_user": 0},
        {"users_per_round": 0.0},
        {"users_per_round": 1001},
        {"rounds": 0},
        {"target_epsilon": 0.0},
    ],
)
def test_numbers_out_of_range_are_refused(changes) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(changes))}`"):
        planned(**changes)
