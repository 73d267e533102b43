"""Strategies that floats cannot hold, and groups of different scales."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    GaussianSumQuery,
    NestedQuery,
)
from keras_dp.ledger import BandedToeplitz, BinaryTree
from keras_dp.noise import reproducible

ROUNDS = 40


def test_noise_that_rounds_draws_away_is_refused() -> None:
    """Float32 lost the draws: sums of answers had no noise at all."""
    strategy = BandedToeplitz((1.0, 2.0))
    with pytest.raises(ValueError, match="times a draw"):
        CorrelatedSumQuery(strategy, 1.0, 1.0, ROUNDS, tf.TensorSpec([2]))

    CorrelatedSumQuery(strategy, 1.0, 1.0, 4, tf.TensorSpec([2]))


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1.0,)),
        BandedToeplitz((1.0, 1.2, 0.7)),
        BinaryTree(),
    ],
)
def test_growth_bounds_every_row_of_the_inverse(strategy) -> None:
    inverse = np.linalg.inv(strategy.matrix(64))
    largest = np.linalg.norm(inverse, axis=1).max()

    found = strategy.growth(64)

    assert largest <= found * (1 + 1e-9)
    if strategy != BinaryTree():
        assert found == pytest.approx(largest)


class TestRestarts:
    def query(self, restart_after=3, **options):
        options = {"rounds": 8, "strategy": BinaryTree(), **options}
        return CorrelatedSumQuery(
            **options,
            l2_norm_clip=1.0,
            noise_multiplier=1.0,
            record_specs=tf.TensorSpec([2]),
            restart_after=restart_after,
        )

    def events(self, query):
        """Returns the events of all rounds, as they are released."""
        state, found = query.initial_global_state(), []
        for _ in range(query.rounds):
            (planned,) = query.ledger_events(query.planned_event(state))
            result = query.get_noised_result(tf.zeros([2]), state)
            state = result.global_state
            assert query.ledger_events(result.event) == (planned,)
            assert np.isfinite(result.value).all()
            found.append(planned)
        with pytest.raises(ValueError, match="`rounds` must be at least"):
            query.planned_event(state)
        return found

    def test_begin_mechanisms_of_their_own(self) -> None:
        events = self.events(self.query())

        ids = [each.mechanism_id for each in events]
        assert ids == [ids[0]] * 3 + [ids[3]] * 3 + [ids[6]] * 2
        assert len({*ids}) == 3
        assert [each.rounds for each in events] == [3] * 6 + [2] * 2

    def test_that_come_are_all_known(self) -> None:
        query = self.query()
        state = query.initial_global_state()
        result = query.get_noised_result(tf.zeros([2]), state)

        for at, counts in (
            (state, [3, 3, 2]),
            (result.global_state, [2, 3, 2]),
        ):
            coming = query.coming_events(at)

            assert [count for _, count in coming] == counts
            ids = [query.ledger_events(event) for event, _ in coming]
            assert len({*ids}) == 3
        assert query.adapts

    def test_come_beside_sums_without_an_end(self) -> None:
        plain = GaussianSumQuery(1.0, 2.0)
        both = NestedQuery({"a": plain, "rows": self.query()})

        coming = both.coming_events(both.initial_global_state())

        assert [count for _, count in coming] == [3, 3, 2]
        for event, count in coming:
            one, row = both.ledger_events(event)
            assert one.noise_stddev == 2
            assert row.rounds == count
        alone = NestedQuery({"a": plain})
        assert alone.coming_events(alone.initial_global_state()) is None

    @pytest.mark.parametrize(
        ("number", "error"), [(0, ValueError), (1.5, TypeError)]
    )
    def test_come_after_some_rounds(self, number, error) -> None:
        with pytest.raises(error, match="`restart_after` must be"):
            self.query(number)


def test_groups_are_clipped_together_in_units_of_their_scales() -> None:
    """As one query over scaled records, whose answers are scaled back."""
    scales = {"a": 0.25, "b": 8.0}
    records = {
        "a": tf.constant([[3.0, -1.0], [0.1, 0.0]]),
        "b": tf.constant([[20.0], [-5.0]]),
    }
    specs = {"a": tf.TensorSpec([2]), "b": tf.TensorSpec([1])}
    strategy = BandedToeplitz((1.0, 0.5))

    def answers(records, scales):
        """Returns the answers of two rounds."""
        query = CorrelatedSumQuery(strategy, 1.5, 2.0, 9, specs, scales)
        query = CorrelatedSumQuery.from_config(query.get_config())
        with reproducible():
            state = query.initial_global_state(seed=3)
        values = []
        for _ in range(2):
            sample = query.accumulate_records(
                query.derive_sample_params(state),
                query.initial_sample_state(specs),
                records,
            )
            result = query.get_noised_result(sample, state)
            values.append(result.value)
            state = result.global_state
        return values

    inverse = {name: records[name] / scales[name] for name in scales}
    for got, want in zip(
        answers(records, scales), answers(inverse, None), strict=True
    ):
        for name, scale in scales.items():
            np.testing.assert_allclose(
                got[name] / scale, want[name], rtol=1e-5, atol=1e-5
            )
            assert np.abs(want[name]).max() > 0.1
