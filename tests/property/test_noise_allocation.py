"""Laws of sharing one noise multiplier out over groups."""

import math

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import FullDataset, GaussianSum, Round
from keras_dp.optimizers import plan_groups

GROUPS = {"a": "a", "b": "b", "rest": ...}
MODEL = keras.Sequential(
    [
        keras.Input((2,)),
        *(keras.layers.Dense(2, name=name) for name in ("a", "b", "c")),
    ]
)
CLIPS = st.fixed_dictionaries(dict.fromkeys(GROUPS, st.floats(1e-6, 1e6)))


@given(clips=CLIPS, noise_multiplier=st.floats(1e-3, 1e3))
def test_groups_cost_what_one_sum_costs(clips, noise_multiplier) -> None:
    """`(sum (S_g / sigma_g)^2)^(-1/2) = z`, also for the accountants."""
    plan = plan_groups(
        MODEL,
        GROUPS,
        noise_multiplier=noise_multiplier,
        l2_norm_clips=clips,
        denominator=8,
    )
    stddevs = {g: q.sum_stddev for g, q in plan.query.queries.items()}
    sums = [GaussianSum(g, clips[g], stddevs[g]) for g in clips]

    ((mechanism, _),) = normalize([(Round(FullDataset(), sums), 1)])

    ratios = [clips[g] / stddevs[g] for g in clips]
    assert 1 / math.hypot(*ratios) == pytest.approx(noise_multiplier, rel=1e-12)
    assert mechanism.noise_multiplier == pytest.approx(
        noise_multiplier, rel=2e-11
    )
    # `sigma_g = z S_g sqrt(G)`, as in the paper.
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-12)
