"""Records that are means over microbatches, and the unit they protect."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.sampling import PoissonBatches, RandomMicrobatches, UserBatches
from tests.private_models import private_of
from tests.slow_loop import clipped, flat, flat_gradients

RECORDS, FEATURES, CLIP = 24, 5, 0.3


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.normal(size=(RECORDS, 2)).astype("float32")


def network():
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(4, "tanh"), layers.Dense(2)]
    )


def private_model(unit="example", query=None, ledger=None):
    own = keras_dp.PrivacyLedger.in_memory(dataset="test", unit=unit)
    asked = query or GaussianAverageQuery(CLIP, 0.0, 6.0)
    return private_of(network(), asked, ledger or own, rate=1.0)


def of_four(**options):
    """Samples of users who have four records each."""
    return UserBatches(
        data(),
        user_ids=np.arange(RECORDS) // 4,
        records_per_user=4,
        **options,
    )


def test_a_ledger_of_microbatches_has_no_single_examples() -> None:
    for act in ("fit", "train_on_batch"):
        with pytest.raises(PrivateTrainingError, match="unit"):
            getattr(private_model("microbatch"), act)(*data())


@pytest.mark.full
@pytest.mark.parametrize("name", ["norms", "bits"])
def test_padding_is_no_record(name) -> None:
    """A group of padding would count as one of norm 0."""
    queries = {
        "norms": AdaptiveClipSumQuery(1.0, 0.0, 0.0, 6.0),
        "bits": QuantileAdaptiveClipSumQuery(1e-3, 0.0, 0.5, 0.2, 0.0, 6.0),
    }
    clips = []
    for rows in (None, 48):  # As many as there are, or twice as many.
        private = private_model("user", queries[name])
        samples = of_four(sampling_probability=1.0, physical_batch_size=rows)
        logs = private.fit(samples, verbose=0).history
        clips.append(logs["clip"][0])

    assert clips[0] == pytest.approx(clips[1], rel=1e-6)


class TestRandomMicrobatches:
    def test_step_by_the_clipped_means_of_slots(self) -> None:
        x, y = data()
        options = {
            "sampling_probability": 1.0,
            "microbatches": RandomMicrobatches(4),
            "seed": 5,
        }
        private = private_model()
        loss = keras.losses.mean_squared_error
        gradients = flat_gradients(private.model, x, y, loss)
        batches = PoissonBatches(np.arange(1, RECORDS + 1), **options)
        rows = batches.rows_of_record.rows
        slots = next(iter(batches)).records.reshape(-1, rows)
        before = flat(private.model)

        private.fit(
            PoissonBatches((x, y), **options), steps_per_epoch=1, verbose=0
        )

        # Divided by the public size, not by what a slot really holds.
        sums = [gradients[slot[slot > 0] - 1].sum(axis=0) / 4 for slot in slots]
        expected = clipped(np.array(sums), CLIP).sum(axis=0) / 6
        assert sorted(slots[slots > 0]) == list(range(1, RECORDS + 1))
        assert len({len(slot[slot > 0]) for slot in slots}) > 1
        np.testing.assert_allclose(
            flat(private.model), before - expected, atol=1e-6
        )

    def test_an_example_more_changes_one_of_them_by_twice_the_clip(
        self,
    ) -> None:
        """The bound of the ledger, reached by opposite gradients."""
        query = GaussianSumQuery(1.0, 0.0)
        params = query.derive_sample_params(query.initial_global_state())
        empty = query.initial_sample_state(tf.zeros([1]))

        def total(gradients, mask):
            records = MaterializedRecords(tf.constant(gradients)[:, None])
            weights = tf.cast(mask, tf.float32) / 2
            groups = [records.grouped(2, weights)]
            return float(
                query.accumulate_records(params, [empty], groups)[0][0]
            )

        worst = 0.0
        for added in (-1e9, -3.0, 0.1, 3.0, 1e9, np.nan):
            gradients = np.array([5, 0, 0, 0, -1, 0], np.float32)
            for row in (1, 3, 5):
                gradients[row] = added
                mask = np.ones(6, bool)
                with_it = total(gradients, mask)
                mask[row] = False
                worst = max(worst, abs(with_it - total(gradients, mask)))
                gradients[row] = 0

        assert worst == pytest.approx(2.0, abs=1e-6)

    def test_slots_are_drawn_uniformly(self) -> None:
        batches = PoissonBatches(
            np.arange(1, 101),
            sampling_probability=1.0,
            microbatches=RandomMicrobatches(25),
            seed=3,
        )
        counts = np.zeros([101, 4])
        for _, batch in zip(range(500), batches, strict=False):
            slots = batch.records.reshape(4, -1)
            for slot in range(4):
                counts[slots[slot], slot] += 1

        # 5 standard deviations of a binomial of 500 and 1/4, 400 times:
        # fails once in 4,000 seeds.
        assert np.abs(counts[1:] - 125).max() < 5 * np.sqrt(500 * 3 / 16)
        together = counts[1:].sum(axis=0)
        assert np.abs(together - 12_500).max() < 5 * np.sqrt(50_000 * 3 / 16)

    def test_an_overfull_slot_leaves_examples_out(self) -> None:
        draw = RandomMicrobatches(50).draw(100, 1.0)

        # All words alike: every example goes to the same slot.
        sample = draw.placed(
            np.arange(100)[:, None],
            draw.most_rows,
            lambda count: np.zeros(count, np.uint64),
        )

        rows = draw.rows_of_record.rows
        assert 50 <= rows < 100
        assert (sample[0, :rows] >= 0).all()
        assert (sample[0, rows:] == -1).all()


class TestArguments:
    @pytest.mark.parametrize("wrong", [4, "random", RandomMicrobatches])
    def test_pieces_of_the_sampled_list_are_refused(self, wrong) -> None:
        with pytest.raises(TypeError, match="shifts all pieces"):
            PoissonBatches(data(), sampling_probability=0.5, microbatches=wrong)

    @pytest.mark.parametrize("size", [0, -1])
    def test_sizes_below_one_are_refused(self, size) -> None:
        with pytest.raises(ValueError, match="`size`"):
            RandomMicrobatches(size)
