"""Canaries without data, which audit the run that they take part in."""

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import scipy.stats

from keras_dp import _check
from keras_dp._override import override
from keras_dp.auditing.phantom_round import (
    PhantomRound,
    Phantoms,
    check_query,
)
from keras_dp.auditing.scores import Scores
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import (
    FullDataset,
    PoissonSampling,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.optimizers.private_round import GRADIENTS
from keras_dp.sampling import PoissonBatches
from keras_dp.sampling.sampler import Pass
from keras_dp.training import PrivateModel
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.preparation import Preparation

Places = npt.NDArray[np.int32]
# The probability that a round samples more canaries than there is room for.
_OVERFLOW = 1e-12


class PhantomCanaries(keras.callbacks.Callback):  # type: ignore[misc]
    """Audits a training by canaries that have coordinates of their own.

    A fair coin decides for each canary whether it takes part. A canary that
    takes part is sampled in each round like a record. Its gradient is a
    multiple of a unit vector, in a coordinate that no variable of the model
    has, and is longer than the clipping norm. The query clips it, adds noise,
    and the ledger records the round as usual. The score of a canary is its log
    likelihood ratio, the best statistic for a guess of its coin.
    `OneRun().epsilon(canaries.scores, delta=...)` is a lower bound on epsilon.
    A bound above the epsilon of the ledger contradicts the ledger.

    Guarantee: the guarantee of the training does not change. Real records are
    zero in the coordinates of canaries, and canaries are zero in all others.
    So neither changes how the other is clipped. The coins and the scores are
    independent of the data, and may be published.

    Canaries do not detect gradients that are computed wrongly or records that
    interact, because their gradients are not computed by the model. Use `check`
    for that.

    Attributes:
        m: The number of canaries. On average, half of them take part.
        coins: Booleans `[m]` from the operating system's generator. True is
            for a canary that takes part.

    `fit` raises `PrivateTrainingError` if the model is not a `PrivateModel`, if
    the query is not a plain Gaussian sum or average of all variables, or if a
    sampler draws neither Poisson samples nor all records.

    Source: Nasr et al. (2023), arXiv:2302.07956, call a canary of one
    coordinate a "Dirac canary"; Steinke et al. (2023), arXiv:2305.08846, have
    many canaries in one run.

    >>> import keras_dp
    >>> x = np.random.default_rng(0).normal(size=[64, 3]).astype("float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> private = keras_dp.PrivateModel(model)
    >>> private.compile(
    ...     keras_dp.DPSGD(0.1,
    ...         ledger=keras_dp.PrivacyLedger.in_memory(dataset="doc"),
    ...         query=keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=16)),
    ...     loss="mse")
    >>> canaries = PhantomCanaries(1000)
    >>> history = private.fit(
    ...     keras_dp.PoissonBatches((x, x[:, :1]), sampling_probability=0.25),
    ...     epochs=2, verbose=0, callbacks=[canaries])
    >>> bool(canaries.scores.inside.mean() > canaries.scores.outside.mean())
    True
    """

    def __init__(self, m: int = 10_000) -> None:
        super().__init__()
        _check.integer_at_least(2, m=m)
        self.m = int(m)
        self.coins = _fair_coins(self.m)
        self._phantoms: Phantoms | None = None

    @property
    def scores(self) -> Scores:
        """The scores of all canaries so far.

        Raises:
            PrivateTrainingError: No `fit` had these canaries.
        """
        if self._phantoms is None:
            raise PrivateTrainingError(
                "`fit` must have run with the canaries before `scores` is "
                "read. Received: canaries without a fit. Call fit(..., "
                "callbacks=[canaries])."
            )
        return Scores.from_coins(self._phantoms.log_ratios(), self.coins)

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if not isinstance(model, PrivateModel) or model._loop is None:
            raise PrivateTrainingError(
                "Phantom canaries must be in the fit of a PrivateModel. "
                f"Received: model={model!r}. Wrap the model in "
                "keras_dp.PrivateModel."
            )
        model._answer_by(self._round_with_canaries(model._loop.ready))

    @override
    def on_train_end(self, logs: Any = None) -> None:
        self.model._answer_by(None)

    def _round_with_canaries(self, ready: Preparation) -> PhantomRound:
        query = check_query(ready.optimizer)
        queries = {GRADIENTS: query, **ready.side_queries.queries}
        probability = _probability_of(ready.adapter)
        if self._phantoms is None:
            most = self._most(probability)
            draws = self._draws(probability, most)
            self._phantoms = Phantoms(self.m, probability, most, draws)
        elif self._phantoms.probability != probability:
            raise PrivateTrainingError(
                "Canaries must have one sampling probability in every fit. "
                f"Received: {probability!r}, after "
                f"{self._phantoms.probability!r}. Make new canaries."
            )
        return PhantomRound(queries, phantoms=self._phantoms)

    def _most(self, probability: float) -> int:
        """Returns how many take part in one round at most."""
        count = int(self.coins.sum())
        most = scipy.stats.binom.isf(_OVERFLOW, count, probability)
        return max(1, min(count, int(most) + 1))

    def _draws(self, probability: float, most: int) -> Iterator[Places]:
        """Yields who takes part in each round, by the sampler of records."""
        present = np.flatnonzero(self.coins)
        if probability == 1 or not len(present):
            drawn: Iterator[Any] = itertools.repeat(present)
        else:
            sampler = PoissonBatches(present, sampling_probability=probability)
            drawn = (
                present[draw.rows[draw.rows >= 0]] for draw in sampler.draws()
            )
        for places in drawn:
            taken = np.full(most, -1, np.int32)
            taken[: len(places)] = places[:most]
            yield taken


def _fair_coins(count: int) -> npt.NDArray[np.bool_]:
    drawn = np.frombuffer(secrets.token_bytes(-(-count // 8)), np.uint8)
    return np.unpackbits(drawn, count=count).astype(np.bool_)


def _probability_of(adapter: DataAdapter) -> float:
    """Returns the probability that a record is in a round."""
    sampling: Any = UnverifiedSampling()
    if adapter.is_sampler:
        sampling = adapter.source.sampling_of(Pass.new())
    if isinstance(sampling, PoissonSampling | TruncatedPoissonSampling):
        return float(sampling.probability)
    if isinstance(sampling, FullDataset | UnverifiedSampling):
        return 1.0
    raise PrivateTrainingError(
        "Phantom canaries must be sampled like records, independently in "
        f"each round. Received: samples of {sampling!r}. Use "
        "PoissonBatches."
    )
