"""Plans of groups for a Keras model: what they query, and what they print."""

import math

import keras
import numpy as np
import pytest
from keras import layers

import keras_dp
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import FullDataset, Round
from keras_dp.optimizers import plan_groups
from keras_dp.training import mean_gradient_norms
from tests.models import MODELS

GROUPS = {
    "embeddings": "embed*",
    "convolutions": ("conv*", "stem*"),
    "normalization": "norm*",
    "heads": "head",
    "everything else": ...,
}
CLIPS = {
    "embeddings": 0.3,
    "convolutions": 1.0,
    "normalization": 0.1,
    "heads": 0.5,
    "everything else": 0.7,
}


def network():
    ids = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 8, name="embed_words")(ids)
    hidden = layers.Conv1D(4, 3, name="stem")(hidden)
    hidden = layers.Conv1D(4, 2, name="conv_1")(hidden)
    hidden = layers.LayerNormalization(name="norm_1")(hidden)
    hidden = layers.Dense(5, name="mixing")(hidden)
    pooled = layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(ids, layers.Dense(3, name="head")(pooled))


def plan(**changes):
    arguments = {
        "noise_multiplier": 1.3,
        "l2_norm_clips": CLIPS,
        "denominator": 50,
        **changes,
    }
    return plan_groups(network(), GROUPS, **arguments)


def test_it_realizes_the_noise_multiplier_in_equal_shares() -> None:
    query = plan().query
    queries = query.queries

    ratios = [q.l2_norm_clip / q.sum_stddev for q in queries.values()]

    assert math.hypot(*ratios) ** -1 == pytest.approx(1.3, rel=1e-12)
    assert ratios == pytest.approx([ratios[0]] * len(GROUPS), rel=1e-12)
    assert {g: q.l2_norm_clip for g, q in queries.items()} == CLIPS
    assert {q.denominator for q in queries.values()} == {50.0}
    events = query.ledger_events(
        query.planned_event(query.initial_global_state()), "gradients"
    )
    ((mechanism, _),) = normalize([(Round(FullDataset(), events), 1)])
    assert mechanism.noise_multiplier == pytest.approx(1.3, rel=1e-11)
    names = {event.name for event in events}
    assert names == {f"gradients/{group}" for group in GROUPS}


class TestArguments:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"l2_norm_clips": {"heads": 1.0}}, "`l2_norm_clips` must have"),
            ({"l2_norm_clips": 0.0}, "`l2_norm_clips` must be"),
            ({"noise_multiplier": 0.0}, "`noise_multiplier` must be"),
            ({"denominator": -1.0}, "`denominator` must be"),
        ],
        ids=str,
    )
    def test_that_cannot_be_are_refused(self, changes, message) -> None:
        with pytest.raises(ValueError, match=message):
            plan(**changes)

    def test_a_variable_without_a_group_is_refused(self) -> None:
        with pytest.raises(ValueError, match="taken by 'no group'"):
            plan_groups(
                network(),
                {"heads": "head"},
                noise_multiplier=1.0,
                l2_norm_clips=1.0,
                denominator=8,
            )


class TestMeanGradientNorms:
    def test_are_those_of_the_examples_one_by_one(self) -> None:
        case = MODELS[0]
        model = case.make()
        x, y = case.data(6)

        got = mean_gradient_norms(model, case.loss, x, y)

        norms = []
        for i in range(6):
            rows = [
                keras.tree.map_structure(
                    lambda leaf, i=i: leaf[i : i + 1], part
                )
                for part in (x, y)
            ]
            norms.append(
                mean_gradient_norms(model, case.loss, *rows)["gradients"]
            )
        assert got["gradients"] == pytest.approx(np.mean(norms), rel=1e-5)


class TestPatterns:
    """What `group_variables` takes for a match."""

    def taken(self, pattern) -> int:
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(3, name="conv"),
                layers.Dense(2, name="a[0]"),
            ]
        )
        return len(
            keras_dp.optimizers.group_variables(
                model, {"g": pattern, "r": ...}
            )["g"]
        )

    @pytest.mark.parametrize(
        ("pattern", "count"),
        [
            ("conv", 2),
            ("c*v", 2),
            ("conv/bias", 1),
            ("*/bias", 2),
            ("a[0]", 2),
            (("conv/kernel", "a[0]/bias"), 2),
        ],
        ids=str,
    )
    def test_whole_parts_of_a_path(self, pattern, count) -> None:
        assert self.taken(pattern) == count

    @pytest.mark.parametrize(
        "pattern", ["c*l", "conv?kernel", "con", "a0", "nv/bias"]
    )
    def test_nothing_across_parts(self, pattern) -> None:
        with pytest.raises(ValueError, match="at least one variable"):
            self.taken(pattern)
