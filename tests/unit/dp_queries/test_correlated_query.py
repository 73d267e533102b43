"""Strategies that floats cannot hold, and groups of different scales."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.dp_queries import CorrelatedSumQuery
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    InverseToeplitz,
    LowerTriangular,
)
from keras_dp.noise import filtered_noise, reproducible

ROUNDS = 40


def unstable_matrix():
    return LowerTriangular.from_matrix(
        np.eye(ROUNDS) + 2 * np.eye(ROUNDS, k=-1)
    )


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1.0, 2.0)),
        BandedToeplitz((1.0, -1.5)),
        BufferedToeplitz((0.5,), (5.0,)),
        unstable_matrix(),
    ],
)
def test_noise_that_rounds_draws_away_is_refused(strategy) -> None:
    """Float32 lost the draws: sums of answers had no noise at all."""
    with pytest.raises(ValueError, match="times a draw"):
        CorrelatedSumQuery(strategy, 1.0, 1.0, ROUNDS, tf.TensorSpec([2]))

    CorrelatedSumQuery(strategy, 1.0, 1.0, 4, tf.TensorSpec([2]))


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1.0,)),
        BandedToeplitz((1.0, -1.2, 0.7)),
        BufferedToeplitz((0.9, 0.2), (0.3, 0.4)),
        LowerTriangular.from_matrix(
            np.tril(np.arange(1.0, 65.0).reshape(8, 8) % 5) + np.eye(8)
        ),
    ],
)
def test_growth_is_the_largest_row_of_the_inverse(strategy) -> None:
    inverse = np.linalg.inv(strategy.matrix(8))

    found = filtered_noise.growth(strategy.filter(8), 8)

    assert found == pytest.approx(np.linalg.norm(inverse, axis=1).max())


@pytest.mark.parametrize(
    "strategy", [InverseToeplitz.square_root(4), BinaryTree()]
)
def test_what_never_grows_is_below_two_draws(strategy) -> None:
    inverse = np.linalg.inv(strategy.matrix(64))

    assert strategy.never_grows
    assert np.linalg.norm(inverse, axis=1).max() < 2


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

    def test_of_as_many_rounds_as_there_are_change_nothing(self) -> None:
        query = self.query(restart_after=8)

        assert len({*self.events(query)}) == 1
        assert not query.adapts

    def test_repeat_a_matrix(self) -> None:
        strategy = LowerTriangular(((1.0,), (0.5, 1.0)))

        assert len({*self.events(self.query(2, strategy=strategy))}) == 4
        with pytest.raises(ValueError, match="`rounds` must be at most 2"):
            self.query(3, strategy=strategy)

    @pytest.mark.parametrize(
        ("number", "error"), [(0, ValueError), (1.5, TypeError)]
    )
    def test_come_after_some_rounds(self, number, error) -> None:
        with pytest.raises(error, match="`restart_after` must be"):
            self.query(number)

    def test_are_saved(self) -> None:
        query = self.query()

        assert type(query).from_config(query.get_config()) == query


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
