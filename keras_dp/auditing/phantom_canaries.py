"""Canaries without data, which audit the run that they take part in."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import scipy.stats

from keras_dp import _check
from keras_dp._override import override
from keras_dp.auditing.coins import FairCoins
from keras_dp.auditing.correlated_phantoms import (
    CorrelatedPhantomRound,
    CorrelatedPhantoms,
)
from keras_dp.auditing.estimators.gaussian_model import GaussianModel
from keras_dp.auditing.lower_bound import Estimator
from keras_dp.auditing.phantom_round import (
    PhantomRound,
    Phantoms,
    check_query,
    plain_query,
)
from keras_dp.auditing.scores import Scores
from keras_dp.auditing.verdicts import Judgement, write_verdict
from keras_dp.dp_queries import CorrelatedSumQuery, DPQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import (
    Commitment,
    CyclicPoissonSampling,
    FullDataset,
    PoissonSampling,
    PrivacyLedger,
    Stated,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.optimizers.private_round import GRADIENTS
from keras_dp.sampling import (
    CyclicPoissonBatches,
    PoissonBatches,
    Sampler,
)
from keras_dp.sampling.sampler import Pass
from keras_dp.training import PrivateModel
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.preparation import Preparation

Places = npt.NDArray[np.int32]
# The probability that a round samples more canaries than there is room for.
_OVERFLOW = 1e-12

# Phantom canaries are no records: their content is the same for all.
_CONTENT = hashlib.sha256(
    b"unit vectors in coordinates of their own"
).hexdigest()


class PhantomCanaries(keras.callbacks.Callback):  # type: ignore[misc]
    """Audits a training by canaries that have coordinates of their own.

    A fair coin decides for each canary whether it takes part. The ledger holds
    a commitment to all coins before the first round. A canary that takes part
    is sampled in each round like a record. Its gradient is a multiple of a unit
    vector, in a coordinate that no variable of the model has, and is longer
    than the clipping norm. The query clips it, adds noise, and the ledger
    records the round as usual. The score of a canary is its log likelihood
    ratio, the best statistic for a guess of its coin. `write_verdict` writes
    the lower bound on epsilon of these scores into the ledger.

    Guarantee: the guarantee of the training does not change. Real records are
    zero in the coordinates of canaries, and canaries are zero in all others.
    So neither changes how the other is clipped. The coins and the scores are
    independent of the data, and may be published.

    Canaries do not detect gradients that are computed wrongly or records that
    interact, because their gradients are not computed by the model. Use `check`
    for that.

    Attributes:
        m: The number of canaries. On average, half of them take part.
        coins: The coins of the canaries.

    `fit` raises `PrivateTrainingError` if the model is not a `PrivateModel`, if
    the query is not a plain Gaussian sum or average of all variables, or if a
    sampler draws neither Poisson samples nor all records. With a
    `CorrelatedSumQuery` the noise of canaries is that of its mechanism, and the
    ratio is of all answers together. Then samples are of classes
    (`CyclicPoissonBatches`), canaries are in one fit, and they take the memory
    of one number for each round and canary.

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
    >>> canaries.write_verdict(delta=1e-5).is_contradiction
    False
    """

    def __init__(self, m: int = 10_000) -> None:
        super().__init__()
        _check.integer_at_least(2, m=m)
        self.m = int(m)
        self.coins = FairCoins.draw(self.m)
        self._phantoms: Phantoms | None = None
        self._sampling: tuple[int, float] | None = None
        self._ledger: PrivacyLedger | None = None
        self._commitment: Stated[Commitment] | None = None
        self._runs: list[int] = []

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
        values = self._phantoms.log_ratios()
        return Scores.from_coins(values, self.coins.values)

    def write_verdict(
        self,
        *,
        delta: float,
        confidence: float = 0.95,
        estimator: Estimator | None = None,
    ) -> Judgement:
        """Writes the lower bound of the canaries into the ledger.

        Call it once, after the last `fit` with the canaries. A second verdict
        can raise a second false alarm.

        Args:
            delta: In (0, 1).
            confidence: In (0, 1).
            estimator: Computes a bound from scores. By default,
                `GaussianModel()`.

        Returns:
            The verdict, with the epsilon that the ledger certifies.

        Raises:
            PrivateTrainingError: No `fit` had these canaries, or the ledger is
                in another process.
        """
        estimator = GaussianModel() if estimator is None else estimator
        bound = estimator.epsilon(
            self.scores, delta=delta, confidence=confidence
        )
        if self._ledger is None or self._commitment is None:
            raise PrivateTrainingError(
                "`write_verdict` must be called in the process that has the "
                "ledger. Received: a process without it. Call it in the chief "
                "of the cluster."
            )
        opening = self.coins.opening(self._commitment.number, _CONTENT)
        return write_verdict(
            self._ledger, bound, runs=self._runs, opening=opening
        )

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if not isinstance(model, PrivateModel) or model._loop is None:
            raise PrivateTrainingError(
                "Phantom canaries must be in the fit of a PrivateModel. "
                f"Received: model={model!r}. Wrap the model in "
                "keras_dp.PrivateModel."
            )
        ledger = model.optimizer.ledger
        if ledger is not self._ledger and self._ledger is not None:
            raise PrivateTrainingError(
                "Canaries must be used with one ledger, which holds their "
                f"commitment. Received: {ledger!r}. Make new canaries."
            )
        round_ = self._round_with_canaries(model._loop.ready)
        if self._commitment is None and isinstance(ledger, PrivacyLedger):
            self._ledger = ledger
            self._commitment = ledger.write_commitment(
                self.coins.commitment(_CONTENT, note=f"{self.m} phantoms")
            )
        model._answer_by(round_)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = self.model._loop.ledger_run
        if run is not None and run.number not in (None, *self._runs):
            self._runs.append(run.number)

    @override
    def on_train_end(self, logs: Any = None) -> None:
        self.model._answer_by(None)

    def _round_with_canaries(self, ready: Preparation) -> PhantomRound:
        query = check_query(ready.optimizer)
        queries = {GRADIENTS: query, **ready.side_queries.queries}
        sampling = _sampling_of(ready.adapter, query)
        if self._phantoms is None:
            self._sampling = sampling
            self._phantoms = self._new_phantoms(query, *sampling)
        elif self._sampling != sampling:
            raise PrivateTrainingError(
                "Canaries must have one sampling probability in every fit. "
                f"Received: {sampling!r}, after {self._sampling!r}. Make new "
                "canaries."
            )
        elif isinstance(self._phantoms, CorrelatedPhantoms):
            raise PrivateTrainingError(
                "Canaries must be in one fit alone where noise is correlated. "
                f"Received: another fit, with {query!r}. Make new canaries."
            )
        if isinstance(self._phantoms, CorrelatedPhantoms):
            return CorrelatedPhantomRound(queries, phantoms=self._phantoms)
        return PhantomRound(queries, phantoms=self._phantoms)

    def _new_phantoms(
        self, query: DPQuery, classes: int, probability: float
    ) -> Phantoms:
        most = self._most(probability / classes)
        draws = self._draws(classes, probability, most)
        inner = plain_query(query)
        if isinstance(inner, CorrelatedSumQuery):
            return CorrelatedPhantoms(
                self.m, probability, most, draws, inner, classes
            )
        return Phantoms(self.m, probability, most, draws)

    def _most(self, probability: float) -> int:
        """Returns how many take part in one round at most."""
        count = int(self.coins.values.sum())
        most = scipy.stats.binom.isf(_OVERFLOW, count, probability)
        return max(1, min(count, int(most) + 1))

    def _draws(
        self, classes: int, probability: float, most: int
    ) -> Iterator[Places]:
        """Yields who takes part in each round, by the sampler of records."""
        present = np.flatnonzero(self.coins.values)
        if (classes, probability) == (1, 1) or not len(present):
            drawn: Iterator[Any] = itertools.repeat(present)
        else:
            sampler: Sampler = PoissonBatches(
                present, sampling_probability=probability
            )
            if classes > 1:
                sampler = CyclicPoissonBatches(
                    present, classes=classes, sampling_probability=probability
                )
            drawn = (
                present[draw.rows[draw.rows >= 0]] for draw in sampler.draws()
            )
        for places in drawn:
            taken = np.full(most, -1, np.int32)
            taken[: len(places)] = places[:most]
            yield taken


def _sampling_of(adapter: DataAdapter, query: DPQuery) -> tuple[int, float]:
    """Returns the classes, and the chance of a record in a round of its own."""
    sampling: Any = UnverifiedSampling()
    if adapter.is_sampler:
        sampling = adapter.source.sampling_of(Pass.new())
    inner, found = plain_query(query), None
    if isinstance(sampling, PoissonSampling | TruncatedPoissonSampling):
        found = 1, float(sampling.probability)
    elif isinstance(sampling, FullDataset | UnverifiedSampling):
        found = 1, 1.0
    if not isinstance(inner, CorrelatedSumQuery):
        if found is not None:
            return found
        raise PrivateTrainingError(
            "Phantom canaries must be sampled like records, independently in "
            f"each round. Received: samples of {sampling!r}. Use "
            "PoissonBatches."
        )
    if isinstance(sampling, CyclicPoissonSampling):
        found = sampling.classes, float(sampling.probability)
    bands = inner.strategy.bands
    if found is None or (found[1] < 1 and not (bands or 2**63) <= found[0]):
        raise PrivateTrainingError(
            "Phantom canaries under correlated noise must take part in all "
            "rounds of a class, or the strategy must have no more bands than "
            f"there are classes. Received: samples of {sampling!r}, with "
            f"{inner.strategy!r}. Use CyclicPoissonBatches."
        )
    return found
