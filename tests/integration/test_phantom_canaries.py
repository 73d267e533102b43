"""Canaries that are no data, in a training that they do not change."""

import itertools

import keras
import numpy as np
import pytest
import scipy.stats

import keras_dp
from keras_dp.auditing import PhantomCanaries
from keras_dp.errors import PrivateTrainingError
from keras_dp.noise import streams
from keras_dp.sampling import FixedSizeBatches
from tests.audited import X, Y, average, dense, samples
from tests.private_models import adaptive_average, private_of
from tests.slow_loop import flat


def fitted(canaries=None, *, query=None, epochs=2, source=None):
    keras.utils.set_random_seed(0)
    made = private_of(dense(), query or average(), seed=7)
    source = samples(seed=3) if source is None else source
    made.fit(source, epochs=epochs, verbose=0, callbacks=canaries)
    return made


def test_weights_and_ledger_are_those_without_canaries():
    query = average(noise_multiplier=1e-6)  # None to be seen.
    plain = fitted(query=query)
    audited = fitted(PhantomCanaries(100), query=query)

    np.testing.assert_allclose(
        flat(plain.model), flat(audited.model), rtol=0, atol=2e-6
    )
    one, two = (each.optimizer.ledger for each in (plain, audited))
    assert one.rounds[0].round == two.rounds[0].round
    assert len(one) == len(two)


@pytest.mark.full
def test_scores_are_likelihood_ratios_of_the_rounds():
    canaries = PhantomCanaries(20_000)

    fitted(canaries, query=average(noise_multiplier=2.0), epochs=4)

    ins, outs = canaries.scores.inside, canaries.scores.outside
    # The mean of a likelihood ratio under its own null is 1.
    ratios = np.exp(outs)
    error = ratios.std() / np.sqrt(len(ratios))
    assert abs(ratios.mean() - 1) < 6 * error
    error = np.sqrt(ins.var() / len(ins) + outs.var() / len(outs))
    assert ins.mean() - outs.mean() > 6 * error


def advantage(canaries):
    """Returns the area under the curve, less a half, over its error."""
    ins, outs = canaries.scores.inside, canaries.scores.outside
    area = scipy.stats.mannwhitneyu(ins, outs).statistic / len(ins) / len(outs)
    return (area - 0.5) / np.sqrt((1 / len(ins) + 1 / len(outs)) / 12)


@pytest.mark.full
def test_canaries_that_nobody_drew_are_not_found(monkeypatch):
    monkeypatch.setattr(
        PhantomCanaries,
        "_draws",
        lambda self, probability, most: itertools.repeat(
            np.full(most, -1, np.int32)
        ),
    )
    canaries = PhantomCanaries(10_000)

    fitted(canaries)

    assert abs(advantage(canaries)) < 5


def test_halved_noise_is_seen(monkeypatch):
    honest = PhantomCanaries(10_000)
    fitted(honest)
    normals = streams.rounded_normals
    monkeypatch.setattr(
        streams,
        "rounded_normals",
        lambda count, seed, stddev: normals(count, seed, 0.5 * stddev),
    )
    faulty = PhantomCanaries(10_000)

    fitted(faulty)

    assert advantage(faulty) > 1.2 * advantage(honest) > 0


@pytest.mark.parametrize(
    "query",
    [lambda: adaptive_average(1.0, 20), lambda: average(noise_multiplier=0.0)],
)
def test_queries_that_canaries_cannot_be_in_are_refused(query):
    with pytest.raises(PrivateTrainingError, match="Phantom canaries must"):
        fitted(PhantomCanaries(10), query=query())


def test_canaries_of_a_fit_that_never_began_are_in_no_other():
    canaries, made = PhantomCanaries(100), fitted(epochs=1)
    arguments = {"callbacks": [canaries], "verbose": 0}
    with pytest.raises(ValueError, match="account"):
        made.fit(
            samples(), run=keras_dp.RunDetails(account="none"), **arguments
        )

    made.fit(samples(), verbose=0)
    scores = canaries.scores
    assert not np.any(scores.inside)
    assert not np.any(scores.outside)


def test_two_audits_in_one_fit_are_refused():
    two = [PhantomCanaries(20), PhantomCanaries(20)]
    with pytest.raises(ValueError, match="`callbacks` must hold one audit"):
        fitted(two)


def test_samplers_that_canaries_cannot_follow_are_refused():
    source = FixedSizeBatches((X, Y), sample_size=20)

    with pytest.raises(PrivateTrainingError, match="Use PoissonBatches"):
        fitted(PhantomCanaries(10), source=source)
