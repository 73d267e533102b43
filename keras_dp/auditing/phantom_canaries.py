"""Canaries without data, which audit the run that they take part in."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import scipy.stats
import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants.arrays import Array
from keras_dp.auditing.one_run import Scores
from keras_dp.dp_queries import (
    DPQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    NormalizedQuery,
)
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import ZeroRecords
from keras_dp.gradients.records.table_records import RowRecords
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import (
    GRADIENTS,
    Event,
    PrivateRound,
    RecordBatch,
    Released,
    Sample,
    State,
)
from keras_dp.sampling import PoissonBatches, random_words
from keras_dp.sampling.draw import Pass
from keras_dp.training import PrivateModel
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.metrics.side_queries import SideQueries

Places = npt.NDArray[np.int32]
# The probability that a round samples more canaries than there is room for.
_OVERFLOW = 1e-12
# Phantoms are longer than the clip, so that the query has to clip them. With
# automatic clipping only a record that is long against gamma has its norm.
_LENGTH, _LEAST_LENGTH = 2.0, 1e12
_LARGEST_LOG = 700.0


class Phantoms:
    """Records that take part beside the real ones, each in its own coordinate.

    Attributes:
        draws: Yields for each round the phantoms that take part: numbers in
            `[0, count)`, and -1 for padding, int32 `[most]`. It is endless.
        probability: The probability with which a phantom that is put in takes
            part in a round, in (0, 1].
        present: The phantoms of this round, as `draws` yields them.
    """

    def __init__(
        self,
        count: int,
        probability: float,
        most: int,
        draws: Iterator[npt.NDArray[np.int32]],
    ) -> None:
        self.count, self.probability, self.draws = count, probability, draws
        self.present = tf.Variable(
            tf.fill([most], tf.constant(-1, tf.int32)), trainable=False
        )
        self._scores = tf.Variable(
            tf.zeros([count], tf.float64), trainable=False
        )

    def add_to_scores(self, answer: tf.Tensor, multiplier: tf.Tensor) -> None:
        """Adds the answer of a round, `[count]`, to the scores.

        The answer is given in standard deviations of its noise. The multiplier
        is the standard deviation of the noise on the sum, divided by the bound
        on a record.
        """
        shift = 1 / multiplier
        log_ratio = tf.cast(answer, tf.float64) * shift - 0.5 * shift**2
        # log(1 - q + q e^r); beyond 700, float64 would overflow.
        rise = tf.math.expm1(tf.minimum(log_ratio, _LARGEST_LOG))
        self._scores.assign_add(tf.math.log1p(self.probability * rise))

    def log_ratios(self) -> Array:
        """Returns the score of each phantom, float64 `[count]`.

        It is the logarithm of the likelihood ratio of all answers so far,
        between "was put in" and "was left out".
        """
        return np.asarray(self._scores)


@dataclasses.dataclass(frozen=True, eq=False)
class PhantomRound(PrivateRound):
    """A round in which phantoms take part.

    Records of the gradients get one more part, a vector with a coordinate for
    each phantom. It is zero for real records, so that their norms and their
    clip stay the same. A phantom is zero in all other parts.

    Guarantee: the guarantee of the queries, as without phantoms. The sum of the
    real records is released with its noise. The vector of the phantoms, which
    depends on no data, is released with independent noise.
    """

    phantoms: Phantoms = dataclasses.field(kw_only=True)

    @override
    def prepare(self) -> None:
        self.phantoms.present.assign(next(self.phantoms.draws))

    @override
    def templates(
        self, variables: list[Any], side_templates: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = super().templates(variables, side_templates)
        own = tf.TensorSpec([self.phantoms.count, 1], tf.float32)
        return {**found, GRADIENTS: [*found[GRADIENTS], own]}

    @override
    def accumulate(
        self,
        state: State,
        sample: Sample,
        variables: list[Any],
        batches: Mapping[str, RecordBatch],
    ) -> Sample:
        gradients = batches[GRADIENTS]
        rows = gradients.records[0].squared_norms().shape[0]
        nothing = ZeroRecords(rows, tf.zeros([self.phantoms.count, 1]))
        records = [*gradients.records, nothing]
        batches = {**batches, GRADIENTS: gradients._replace(records=records)}
        return super().accumulate(state, sample, variables, batches)

    @override
    def release(
        self,
        sample: Sample,
        state: State,
        variables: list[Any],
        planned: Event,
    ) -> Released:
        query, phantoms = self.queries[GRADIENTS], self.phantoms
        present = tf.convert_to_tensor(phantoms.present)
        rows = present.shape[0]
        length = tf.maximum(
            _LENGTH * tf.cast(planned[GRADIENTS].l2_norm_bound, tf.float32),
            _LEAST_LENGTH,
        )
        records = [
            *(ZeroRecords(rows, tf.zeros_like(v)) for v in variables),
            # Like a row of an embedding: each has one coordinate.
            RowRecords(
                tf.maximum(present, 0)[:, tf.newaxis],
                tf.fill([rows, 1, 1], length),
                phantoms.count,
            ),
        ]
        with_phantoms = query.accumulate_records(
            query.derive_sample_params(state[GRADIENTS]),
            sample[GRADIENTS],
            records,
            present >= 0,
        )
        released = super().release(
            {**sample, GRADIENTS: with_phantoms}, state, variables, planned
        )
        *gradients, answer = released.gradients
        event = planned[GRADIENTS]
        *_, noise = query.result_noise(
            state[GRADIENTS], released.answers[GRADIENTS]
        )
        phantoms.add_to_scores(
            tf.cast(answer[:, 0], tf.float64) / noise.scale,
            event.noise_stddev / event.l2_norm_bound,
        )
        answers = {**released.answers, GRADIENTS: gradients}
        return released._replace(gradients=gradients, answers=answers)


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
        words = random_words.from_operating_system(-(-self.m // 64))
        bits = np.unpackbits(words.view(np.uint8), count=self.m)
        self.coins = bits.astype(np.bool_)
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
        if not isinstance(model, PrivateModel):
            raise PrivateTrainingError(
                "Phantom canaries must be in the fit of a PrivateModel. "
                f"Received: model={model!r}. Wrap the model in "
                "keras_dp.PrivateModel."
            )

    def answering_round(
        self,
        optimizer: DPOptimizer,
        side_queries: SideQueries,
        adapter: DataAdapter,
    ) -> PhantomRound:
        """Returns the round that answers in a training with the canaries."""
        query = check_query(optimizer)
        queries = {GRADIENTS: query, **side_queries.queries}
        probability = _probability_of(adapter)
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


def _probability_of(adapter: DataAdapter) -> float:
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


def check_query(optimizer: DPOptimizer) -> DPQuery:
    """Returns the query of an optimizer, if phantoms can be its records."""
    query, groups = optimizer.query, optimizer.groups
    if groups is not None or not _is_plain(query):
        raise PrivateTrainingError(
            "Phantom canaries must be answered by a Gaussian sum or "
            f"average of all variables. Received: query={query!r}, "
            f"groups={groups!r}. Audit the same training with "
            "GaussianAverageQuery, or by input canaries."
        )
    return query


def _is_plain(query: DPQuery) -> bool:
    """Returns whether a query adds Gaussian noise to one clipped vector."""
    while isinstance(query, NormalizedQuery):
        query = query.inner
    if type(query) not in (GaussianSumQuery, GaussianAverageQuery):
        return False
    state = query.initial_global_state()
    (event,) = query.ledger_events(query.planned_event(state))
    return isinstance(event, GaussianSum) and event.noise_stddev > 0
