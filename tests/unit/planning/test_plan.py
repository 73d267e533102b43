"""Plans meet their target, and tell what the sampler would do."""

import numpy as np
import pytest

from keras_dp.accountants import RDP
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.planning.plan import plan
from keras_dp.reporting import plan_document
from keras_dp.sampling import PoissonBatches

TRAINING = {
    "population_size": 60_000,
    "target_epsilon": 2.0,
    "delta": 1e-5,
    "epochs": 10,
    "batch_sizes": (64, 256, 1000, 60_000),
    "accountant": RDP(),
}
HELD = [(Round(PoissonSampling(0.01), (GaussianSum("a", 1.0, 2.0),)), 500)]


def planned(**changes):
    arguments = TRAINING | changes
    return plan(arguments.pop("population_size"), **arguments)


class TestTheRows:
    @pytest.mark.parametrize("held", [[], HELD], ids=["alone", "over others"])
    @pytest.mark.parametrize("neighbours", [None, "replace_one"])
    def test_meet_the_target_and_waste_nothing(self, held, neighbours) -> None:
        """What a ledger holds counts towards the target."""
        for row in planned(neighbours=neighbours, ledger=held).rows[:2]:
            query = GaussianSum("sum", 1.0, row.noise_multiplier)
            sampling = PoissonSampling(row.sampling_probability)
            epsilon = RDP().epsilon(
                [*held, (Round(sampling, (query,)), row.steps)],
                delta=1e-5,
                neighbours=neighbours,
            )
            assert row.epsilon == epsilon
            assert 2.0 * (1 - 1e-6) <= epsilon <= 2.0

    @pytest.mark.parametrize("size", [1, 7, 64, 1000])
    def test_are_what_the_sampler_does(self, size) -> None:
        sampler = PoissonBatches(
            np.zeros([1000, 1]), sampling_probability=size / 1000
        )

        (row,) = planned(population_size=1000, batch_sizes=[size]).rows

        assert row.sampling_probability == sampler.sampling_probability
        assert row.physical_batch_size == sampler.physical_batch_size
        assert row.steps == 10 * sampler.rounds_per_epoch


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("population_size", 0, ValueError),
        ("epochs", 0, ValueError),
        ("epochs", 1.5, TypeError),
        ("batch_sizes", [], ValueError),
        ("batch_sizes", [0], ValueError),
        ("batch_sizes", [60_001], ValueError),
        ("delta", 1.0, ValueError),
        ("target_epsilon", 0.0, ValueError),
        ("neighbours", "other", ValueError),
    ],
)
def test_bad_arguments_raise(name, value, kind) -> None:
    with pytest.raises(kind, match=f"`{name}`"):
        planned(**{name: value})


class TestTheRecommendedRow:
    def test_is_the_smallest_with_nearly_the_best_signal(self) -> None:
        table = planned(batch_sizes=[64, 256, 1024, 4096, 16384, 60_000])

        best = table.rows[3].signal  # 16,384 take 40 steps.
        assert table.rows[4].steps == 40
        smaller = [
            row
            for row in table.rows
            if row.batch_size < table.recommended.batch_size
        ]
        assert smaller
        assert table.recommended.signal >= 0.95 * best
        assert all(row.signal < 0.95 * best for row in smaller)

    def test_signal_is_steps_over_the_noise_of_their_sum(self) -> None:
        (row,) = planned(batch_sizes=[256]).rows

        noise = np.sqrt(row.steps) * row.noise_multiplier / 256
        assert row.signal == pytest.approx(row.steps / noise, rel=1e-12)


def test_the_table_rounds_noise_up() -> None:
    """What is copied from it meets the target."""
    found = planned()

    table, *_ = plan_document(found).parts
    for row, cells in zip(found.rows, table.rows, strict=True):
        shown = float(cells[3])
        assert row.noise_multiplier <= shown < row.noise_multiplier + 2e-4


def test_the_target_is_not_rounded() -> None:
    found = planned(target_epsilon=2.0000004, batch_sizes=[256])

    words = " ".join(str(plan_document(found)).split())
    assert "epsilon <= 2.0000004 at delta" in words
    assert "target_epsilon=2.0000004," in words
