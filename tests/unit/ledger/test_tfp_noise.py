"""Laws of TensorFlow Probability as noise families."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from keras_dp.accountants import RDP
from keras_dp.errors import LedgerFormatError, UnsupportedEventError
from keras_dp.ledger import (
    CoordinateBounds,
    EncodedSum,
    LaplaceNoise,
    PoissonSampling,
    PrivacyLedger,
    Round,
    StudentTNoise,
)
from keras_dp.ledger.rows.codec import round_from_text, text_from_round
from keras_dp.noise import from_tfp
from tests.imports import ROOT

tfp = pytest.importorskip("tensorflow_probability.substrates.numpy")
tfd = tfp.distributions
pytestmark = pytest.mark.standard  # TensorFlow Probability takes seconds.

BOUNDS = CoordinateBounds.from_vectors([[3, 1, 0.5], [2, 2, 2]])


def made(name, *parameters):
    """Returns a distribution of float64, whose cdf is then one, too."""
    return getattr(tfd, name)(*map(np.float64, parameters))


# Of the same law by our formulas.
PAIRS = [
    (made("StudentT", 5.0, 0.0, 2.0), StudentTNoise(2.0, 5.0)),
    (made("Laplace", 0.0, 0.5), LaplaceNoise(0.5)),
]
OTHERS = [
    made("GeneralizedNormal", 0.0, 1.0, 0.9),
    made("NormalInverseGaussian", 0.0, 1.0, 1.5, 0.0),
    made("JohnsonSU", 0.0, 1.5, 0.0, 1.0),
    made("StudentT", 1.5, 0.0, 1.0),
]


def a_round(noise):
    release = EncodedSum("gradients", BOUNDS, noise)
    return Round(PoissonSampling(0.01, drawn_by_library=True), (release,))


@pytest.mark.parametrize(("distribution", "ours"), PAIRS, ids=str)
class TestALawThatWeHaveToo:
    def test_is_the_same(self, distribution, ours) -> None:
        noise = from_tfp(distribution)
        x = np.linspace(-40, 40, 101)
        p = 10.0 ** np.linspace(-19, -0.4, 50)
        assert noise.scale == ours.scale
        np.testing.assert_allclose(
            noise.log_density(x), ours.log_density(x), rtol=1e-12
        )
        np.testing.assert_allclose(noise.cdf(x), ours.cdf(x), rtol=1e-8)
        np.testing.assert_allclose(
            noise.quantile(p), ours.quantile(p), rtol=1e-8
        )
        assert noise.variance == pytest.approx(ours.variance)


@pytest.mark.parametrize(
    "distribution",
    [*OTHERS, *(pair[0] for pair in PAIRS)],
    ids=lambda distribution: distribution.name,
)
class TestEveryLaw:
    def test_has_the_cdf_of_the_library(self, distribution) -> None:
        noise = from_tfp(distribution)
        x = np.linspace(-6, 6, 61)
        if distribution.name == "NormalInverseGaussian":  # It has none.
            expected = stats.norminvgauss(1.5, 0).cdf(x)
        else:
            with np.errstate(all="ignore"):
                expected = distribution.cdf(x)
        np.testing.assert_allclose(noise.cdf(x), expected, rtol=1e-6)

    def test_comes_back_from_a_ledger(self, distribution) -> None:
        noise = from_tfp(distribution)
        round_ = a_round(noise.scaled(2.0))
        again = round_from_text(text_from_round(round_))
        assert again == round_
        assert again.queries[0].noise.scale == 2 * noise.scale


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("distribution", "rule"),
        [
            (tfd.StudentT(5.0, 0.1, 1.0), "symmetric about 0"),
            (tfd.Gumbel(0.0, 1.0), "symmetric about 0"),
            (tfd.Poisson(1.0), "symmetric about 0"),
            (tfd.Uniform(-1.0, 1.0), "positive everywhere"),
            (tfd.DoublesidedMaxwell(0.0, 1.0), "must be"),
            # It overflows where its density is nothing.
            (made("SinhArcsinh", 0.0, 1.0, 0.0, 0.8), "finite or -inf"),
            (tfd.Cauchy(0.0, 1.0), "positive everywhere"),
            (tfd.Normal(0.0, 1.0), "no faster than an exponential"),
            (tfd.GeneralizedNormal(0.0, 1.0, 1.1), "no faster than an exp"),
            (tfd.StudentT(0.5, 0.0, 1.0), "tails fall"),
        ],
        ids=lambda each: getattr(each, "name", ""),
    )
    def test_a_law_that_is_no_noise(self, distribution, rule) -> None:
        with pytest.raises(ValueError, match=rule):
            from_tfp(distribution)

    def test_a_law_far_from_its_unit(self) -> None:
        distribution = made("NormalInverseGaussian", 0.0, 1e-4, 1.5, 0.0)
        with pytest.raises(ValueError, match=r"between 0\.005 and 50"):
            from_tfp(distribution)

    @pytest.mark.parametrize(
        "distribution",
        [
            tfd.Normal(np.zeros(3), 1.0),
            tfd.MixtureSameFamily(
                tfd.Categorical(probs=[0.5, 0.5]),
                tfd.Normal([0.0, 0], [1.0, 3]),
            ),
            "Normal",
            None,
        ],
        ids=str,
    )
    def test_what_cannot_be_recorded(self, distribution) -> None:
        with pytest.raises(TypeError, match="`distribution` must"):
            from_tfp(distribution)

    def test_an_infinite_fisher_information(self) -> None:
        noise = from_tfp(tfd.GeneralizedNormal(0.0, 1.0, 0.5))
        with pytest.raises(UnsupportedEventError, match="Fisher"):
            RDP().epsilon([(a_round(noise), 1)], delta=1e-5)

    def test_another_density_by_the_same_name(self) -> None:
        noise = from_tfp(tfd.StudentT(5.0, 0.0, 1.0))
        text = text_from_round(a_round(noise))
        other = from_tfp(tfd.StudentT(5.001, 0.0, 1.0))
        assert other.digest != noise.digest
        with pytest.raises(LedgerFormatError, match="`digest` must be"):
            round_from_text(text.replace(noise.digest, other.digest))

    @pytest.mark.parametrize("name", ["Distribution", "os", "Beta", "VGamma"])
    def test_another_name(self, name) -> None:
        noise = from_tfp(tfd.StudentT(5.0, 0.0, 1.0))
        with pytest.raises((ValueError, TypeError)):
            dataclasses.replace(noise, distribution=name)


WITHOUT = """
import sys

sys.modules["tensorflow_probability"] = None
from keras_dp.accountants import RDP
from keras_dp.ledger import PrivacyLedger

with PrivacyLedger.open("p.ledger", mode="r") as ledger:
    print(len(ledger), ledger.verify().rows)
    try:
        RDP().epsilon(ledger, delta=1e-5)
    except ImportError as error:
        print(error)
assert "tensorflow" not in sys.modules
"""


def test_without_the_extra_a_ledger_is_read_and_not_replayed(tmp_path) -> None:
    round_ = a_round(from_tfp(tfd.StudentT(5.0, 0.0, 1.0)))
    with PrivacyLedger.open(tmp_path / "p.ledger", dataset="d") as ledger:
        ledger.record(round_.sampling, round_.queries, 7)

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    size, error = done.stdout.splitlines()
    assert size.startswith("7 ")
    assert 'pip install "keras_dp[probability]"' in error
