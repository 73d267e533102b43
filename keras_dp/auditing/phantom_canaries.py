"""Canaries that are no data, in the very run that they audit."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import scipy.stats
from typing_extensions import override

from keras_dp import _check
from keras_dp.auditing.canaries.coins import FairCoins
from keras_dp.auditing.estimators.gaussian_model import GaussianModel
from keras_dp.auditing.lower_bound import Estimator
from keras_dp.auditing.scores import Scores
from keras_dp.auditing.verdicts import Judgement, write_verdict
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import (
    CommitmentRecord,
    FullDataset,
    PoissonSampling,
    PrivacyLedger,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.sampling import PoissonBatches
from keras_dp.sampling.sampler import Pass
from keras_dp.training import PrivateModel
from keras_dp.training.data_adapter import DataAdapter
from keras_dp.training.phantom_round import PhantomRound, Phantoms

Places = npt.NDArray[np.int32]
# Chance that more canaries are drawn in a round than have room.
_OVERFLOW = 1e-12

# Phantom canaries are no records: their content is the same for all.
_CONTENT = hashlib.sha256(
    b"unit vectors in coordinates of their own"
).hexdigest()


class PhantomCanaries(keras.callbacks.Callback):  # type: ignore[misc]
    """Audits a training by records of no data, in coordinates of their own.

    A fair coin decides for each canary whether it takes part; before the first
    round, the ledger holds a commitment to all coins. A canary that does is
    drawn in each round as a record is; its gradient is a multiple of a unit
    vector in a coordinate that no variable of the model has, longer than the
    clip. The query clips it with the real records, adds its noise, and the
    ledger counts the round as ever. Afterwards `scores` tell how well the
    canaries that took part are told from the others: as well as the ledger
    allows, for each score is the likelihood ratio itself. `write_verdict` puts
    the lower bound on epsilon that they show beside the ledger's upper one.

    Guarantee: that of the training, unchanged. Real records are zero where
    canaries are not, and the other way round: neither changes what the clip
    makes of the other. The coins and the scores are independent of the data,
    and may be published.

    It cannot see gradients that are computed wrongly, or records that interact:
    canaries have no gradients to compute. `check` looks there.

    Attributes:
        m: How many canaries there are, half of them in on average.
        coins: Which take part.

    Raises:
        PrivateTrainingError: The model is not private, the query is none that
            canaries can be in, or its sampler draws neither Poisson samples
            nor everything.

    Source: one coordinate a canary is the "Dirac canary" of Nasr et al.
    (2023), arXiv:2302.07956; many of them in one run are those of Steinke et
    al. (2023), arXiv:2305.08846.

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
        self._ledger: PrivacyLedger | None = None
        self._commitment: CommitmentRecord | None = None
        self._runs: list[int] = []

    @property
    def scores(self) -> Scores:
        """The scores of all canaries so far.

        Raises:
            PrivateTrainingError: There was no `fit` with them.
        """
        if self._phantoms is None:
            raise PrivateTrainingError(
                "`fit` must have run with the canaries before they have "
                "scores. Call fit(..., callbacks=[canaries])."
            )
        values = np.asarray(self._phantoms.scores)
        return Scores.from_coins(values, self.coins.values)

    def write_verdict(
        self,
        *,
        delta: float,
        confidence: float = 0.95,
        estimator: Estimator | None = None,
    ) -> Judgement:
        """Writes into the ledger what the canaries tell of the training.

        Call it once, after the last `fit` with the canaries: a second verdict
        is a second chance of a false alarm.

        Args:
            delta: In (0, 1).
            confidence: In (0, 1).
            estimator: Turns scores into a bound; `GaussianModel` by default.

        Returns:
            The verdict beside the epsilon that the ledger certifies.

        Raises:
            PrivateTrainingError: There was no `fit` with them, or its ledger is
                in another process.
        """
        estimator = GaussianModel() if estimator is None else estimator
        bound = estimator.epsilon(
            self.scores, delta=delta, confidence=confidence
        )
        if self._ledger is None or self._commitment is None:
            raise PrivateTrainingError(
                "`write_verdict` must be called where the ledger is: by the "
                "chief of a cluster."
            )
        opening = self.coins.opening(self._commitment.number, _CONTENT)
        return write_verdict(
            self._ledger, bound, runs=self._runs, opening=opening
        )

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        if not isinstance(self.model, PrivateModel):
            raise PrivateTrainingError(
                "Phantom canaries must be in the fit of a PrivateModel. "
                f"Received: model={self.model!r}."
            )
        ledger = self.model.optimizer.ledger
        if self._commitment is None and isinstance(ledger, PrivacyLedger):
            self._ledger = ledger
            self._commitment = ledger.write_commitment(
                self.coins.commitment(_CONTENT, note=f"{self.m} phantoms")
            )
        if ledger is not self._ledger and self._ledger is not None:
            raise PrivateTrainingError(
                "Canaries must stay with one ledger, to which they are "
                f"committed. Received: {ledger!r}. Make new canaries."
            )
        self.model.change_round(self._with_canaries)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        number = self.model.run_number
        if number is not None and number not in self._runs:
            self._runs.append(number)

    @override
    def on_train_end(self, logs: Any = None) -> None:
        self.model.change_round(None)

    def _with_canaries(
        self, adapter: DataAdapter, own: PrivateRound
    ) -> PrivateRound:
        probability = _probability_of(adapter)
        if self._phantoms is None:
            most = self._most(probability)
            draws = self._draws(probability, most)
            self._phantoms = Phantoms(self.m, probability, most, draws)
        elif self._phantoms.probability != probability:
            raise PrivateTrainingError(
                "Canaries must see one sampling probability. Received: "
                f"{probability!r}, after {self._phantoms.probability!r}. Make "
                "new canaries."
            )
        return PhantomRound(own.queries, own.groups, phantoms=self._phantoms)

    def _most(self, probability: float) -> int:
        """Returns how many take part in one round at most."""
        count = int(self.coins.values.sum())
        most = scipy.stats.binom.isf(_OVERFLOW, count, probability)
        return max(1, min(count, int(most) + 1))

    def _draws(self, probability: float, most: int) -> Iterator[Places]:
        """Yields who takes part in each round, by the sampler of records."""
        present = np.flatnonzero(self.coins.values)
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


def _probability_of(adapter: DataAdapter) -> float:
    """Returns the chance of a record to be in a round."""
    sampling: Any = UnverifiedSampling()
    if adapter.is_sampler:
        sampling = adapter.source.sampling_of(Pass.new())
    if isinstance(sampling, PoissonSampling | TruncatedPoissonSampling):
        return float(sampling.probability)
    if isinstance(sampling, FullDataset | UnverifiedSampling):
        return 1.0
    raise PrivateTrainingError(
        "Phantom canaries must be drawn as records are, independently in each "
        f"round. Received: samples of {sampling!r}. Use PoissonBatches."
    )
