"""Training on two replicas is training on one."""

import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import keras_dp
from keras_dp.dp_queries import GaussianAverageQuery, GaussianSumQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.optimizers.inner_optimizer import already_summed
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.training import private_model
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.devices.workers import LedgerOfChief, refusal_of
from tests import programs
from tests.private_models import private_of
from tests.waiting import HUNG_SECONDS

SCRIPT = Path(__file__).with_name("replica_training.py")

# Chance that a correct library fails, had the seed been free.
FALSE_ALARM = 1e-6

COMPARED = [
    "correlated",
    "adaptive_in_groups",
    "beside",
    "noised_parts_mapped",
    "evaluated",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns results by number of replicas, and by what they are."""
    path = tmp_path_factory.mktemp("replicas") / "trained.npz"
    done = programs.python(SCRIPT, path, timeout=HUNG_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    results = {1: {}, 2: {}}
    with np.load(path) as arrays:
        for name in arrays:
            replicas, _, what = name.partition("/")
            results[int(replicas)][what] = arrays[name]
    return results


@pytest.mark.full
@pytest.mark.parametrize("name", COMPARED)
class TestTwoReplicas:
    def test_weights_are_those_of_one(self, trained, name) -> None:
        """Sums in another order differ by a few units of rounding a round.

        Adam divides by roots of squares: it makes more of small differences.
        """
        one, two = (trained[n][f"{name}/weights"] for n in (1, 2))

        np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)
        assert np.linalg.norm(one) > 0.1

    def test_logs_are_those_of_one(self, trained, name) -> None:
        one, two = (
            {k: v for k, v in trained[n].items() if k.startswith(f"{name}/log")}
            for n in (1, 2)
        )

        assert set(one) == set(two)
        assert one
        for key, values in one.items():
            np.testing.assert_allclose(two[key], values, rtol=1e-4, err_msg=key)

    def test_every_round_is_recorded_once(self, trained, name) -> None:
        one, two = (trained[n][f"{name}/rounds"] for n in (1, 2))

        assert one == two > 0

    def test_replicas_stay_equal_bit_by_bit(self, trained, name) -> None:
        """Weights, optimizer, the public state of the query, and seeds."""
        assert trained[2][f"{name}/apart"] == 0

    def test_a_kind_of_batch_is_traced_once(self, trained, name) -> None:
        """Four at most: a whole sample, and the first, middle and last part."""
        assert trained[2][f"{name}/traces"] <= 4


@pytest.mark.full
def test_dropout_is_drawn_on_replicas(trained) -> None:
    assert np.isfinite(trained[2]["dropout/weights"]).all()
    assert trained[2]["dropout/apart"] == 0


def _p_value(steps: np.ndarray, stddev: float) -> float:
    return stats.kstest(steps, stats.norm(scale=stddev).cdf).pvalue


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
class TestTheNoise:
    def test_is_added_once(self, trained, replicas) -> None:
        """An update in which nothing of the records is left."""
        steps = trained[replicas]["noise_alone/steps"]

        assert _p_value(steps, 3.0) > FALSE_ALARM

    @pytest.mark.parametrize(
        "wrong", [6.0, 3.0 * np.sqrt(2), 1.5, 3.0 / np.sqrt(2)]
    )
    def test_the_check_above_can_fail(self, trained, replicas, wrong) -> None:
        """Control: added twice, drawn twice, halved, or averaged."""
        steps = trained[replicas]["noise_alone/steps"]

        assert _p_value(steps, wrong) < FALSE_ALARM

    def test_is_the_same_on_any_number_of_replicas(
        self, trained, replicas
    ) -> None:
        np.testing.assert_array_equal(
            trained[replicas]["noise_alone/steps"],
            trained[1]["noise_alone/steps"],
        )


class TestWithoutItsWorkaround:
    def test_keras_would_sum_what_is_summed(self) -> None:
        """Once more per replica, if it were asked to: noise times replicas."""
        calls = []

        class Counting(keras.optimizers.SGD):
            def _all_reduce_sum_gradients(self, grads_and_vars):
                calls.append(grads_and_vars)
                return super()._all_reduce_sum_gradients(grads_and_vars)

        inner = Counting(1.0)
        variable = keras.Variable([1.0])
        inner.build([variable])

        with already_summed(inner):
            inner.apply([tf.constant([0.5])], [variable])
            assert not calls
        inner.apply([tf.constant([0.5])], [variable])
        assert len(calls) == 1

    def test_replicas_take_turns_in_it(self) -> None:
        inner = keras.optimizers.SGD(1.0)
        first, second = already_summed(inner), already_summed(inner)
        given = [("gradient", "variable")]

        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert inner._all_reduce_sum_gradients(given) == given
        second.__exit__(None, None, None)
        assert "_all_reduce_sum_gradients" not in vars(inner)


class TestRefusals:
    def test_a_query_that_joins_samples_otherwise(self) -> None:
        class Largest(GaussianSumQuery):
            def merge_sample_states(self, state_1, state_2):
                return tf.nest.map_structure(tf.maximum, state_1, state_2)

        asked = PrivateRound.of(Largest(1.0, 1.0))

        with pytest.raises(PrivateTrainingError, match="adding up"):
            asked.check_sums({"gradients": [tf.TensorSpec([2])]})

    def test_a_query_whose_empty_sample_is_not_zero(self) -> None:
        class FromOne(GaussianSumQuery):
            def initial_sample_state(self, template):
                return tf.nest.map_structure(
                    lambda leaf: tf.ones(leaf.shape), template
                )

        asked = PrivateRound.of(FromOne(1.0, 1.0))

        with pytest.raises(PrivateTrainingError, match="adding up"):
            asked.check_sums({"gradients": [tf.TensorSpec([2])]})

    @pytest.mark.parametrize(
        ("kind", "outside", "match"),
        [
            (tf.distribute.MirroredStrategy, True, "in the scope"),
            # Its replicas do not wait for each other.
            (
                tf.distribute.experimental.CentralStorageStrategy,
                False,
                "MirroredStrategy",
            ),
        ],
    )
    def test_a_model_or_a_strategy(self, kind, outside, match) -> None:
        def made():
            return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

        elsewhere, strategy = made(), kind(["CPU:0"])
        with strategy.scope():
            model = elsewhere if outside else made()
            private = private_of(model, GaussianAverageQuery(1.0, 1.0, 2.0))

        with pytest.raises(PrivateTrainingError, match=match):
            private.train_on_batch(np.zeros([2, 2]), np.zeros([2, 1]))

    def test_xla_on_several_replicas(self, monkeypatch) -> None:
        many = types.SimpleNamespace(are_many=True)
        monkeypatch.setattr(private_model, "Replicas", lambda strategy: many)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

        with pytest.raises(ValueError, match="`jit_compile` must"):
            private_of(
                model, GaussianAverageQuery(1.0, 1.0, 2.0), jit_compile=True
            )

    def test_a_process_on_its_own_without_a_ledger(self) -> None:
        alone = Replicas(tf.distribute.get_strategy())
        elsewhere = LedgerOfChief(keras_dp.ledger.Header("test"))

        refusal = refusal_of(elsewhere, DataAdapter(None), alone)

        assert "PrivacyLedger on" in str(refusal)
