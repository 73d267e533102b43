"""A training on public data with the signal and the noise of a private one."""

from typing import Any

import keras

from keras_dp import _check
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery, ScheduledQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import compile_arguments_of, fresh_copy_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers import DPOptimizer
from keras_dp.recipes.training_data import stored
from keras_dp.sampling import PoissonBatches, Sampler
from keras_dp.sampling.record_source import Records
from keras_dp.training import PrivateModel


def simulation_of(
    private: PrivateModel, data: Any, *, divided_by: float = 8.0
) -> PrivateModel:
    """Returns a cheap training on public data, to choose settings by.

    The expected size of its samples and its noise multiplier are those of
    `private`, divided by `divided_by`. So an answer has as much noise as in the
    private training, and costs only a part of its time. All else is equal: the
    optimizer with its learning rate, the clip, the number of rounds, the loss,
    and the present weights of the model. A ranking of settings mostly carries
    over. Accuracies are a little lower, for smaller samples differ more.

    Neither the records of `private` nor its ledger are used. Samples of public
    data are seen as often as in the private training if there are about
    `1 / divided_by` times as many public records.

    Guarantee: none. The noise is far too small to protect `data`, which must be
    public or generated.

    Args:
        private: From `make_private`. Nothing need have been trained.
        data: As in `make_private`, without a sampler: public records of the
            form of the private ones.
        divided_by: > 0, and so large that a sample is expected to hold at
            least 1 and at most all of the public records.

    Returns:
        A model like `private`, around a copy of its model. `fit()` trains it.
        It shows no epsilon, and takes no other data.

    Raises:
        PrivateTrainingError: `private` draws other samples than a
            `PoissonBatches` of single records without a schedule, or answers
            by another query than a Gaussian average, perhaps with a schedule
            of its noise.
        ValueError: `private` has no samples, or `divided_by` is out of its
            range.

    Source: Sander, Stock, Sablayrolles (2022), arXiv:2210.03403, section 3:
    "TAN training", which keeps the ratio of noise and batch size.

    >>> import keras_dp, numpy as np
    >>> x, y = np.zeros([640, 3], "float32"), np.zeros([640, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> private = keras_dp.make_private(
    ...     model, (x, y), loss="mse", target_epsilon=3.0, epochs=2,
    ...     batch_size=64, ledger=PrivacyLedger.in_memory(dataset="doc"),
    ...     verbose=False)
    >>> simulation = simulation_of(private, (x[:80], y[:80]))
    >>> simulation.samples.expected_sample_size
    8.0
    >>> history = simulation.fit(verbose=0)
    >>> simulation.optimizer.rounds_released, private.optimizer.rounds_released
    (20, 0)
    """
    _check.finite_positive(divided_by=divided_by)
    samples = _samples(private, data, divided_by)
    model = keras.models.clone_model(private.model)
    if private.model.built:
        model.set_weights(private.model.get_weights())
    result = PrivateModel(model)
    result.is_simulation = True
    compiled = compile_arguments_of(private)
    statistics = compiled.pop("batch_statistics", None)
    for name in ("optimizer", "private_metrics"):
        compiled.pop(name, None)
    optimizer = DPOptimizer(
        fresh_copy_of(private.optimizer.inner),
        query=_divided(private.optimizer.query, divided_by),
        ledger=PrivacyLedger.in_memory(dataset="public data"),
    )
    optimizer.use_ema = private.optimizer.use_ema
    optimizer.ema_momentum = private.optimizer.ema_momentum
    result.compile(
        optimizer,
        batch_statistics=statistics and _divided(statistics, divided_by),
        **compiled,
    )
    result.samples, result.epochs = samples, private.epochs
    result.validation_data = private.validation_data
    return result


def _samples(
    private: PrivateModel, data: Any, divided_by: float
) -> PoissonBatches:
    """Returns the samples of a simulation."""
    of = private.samples
    if of is None:
        raise ValueError(
            "`private` must have samples, epochs and noise. Received: a "
            "PrivateModel that was compiled by hand. Make it by make_private."
        )
    if (
        not isinstance(of, PoissonBatches)
        or of.microbatches is not None
        or of.truncate_at is not None
        or of.scheduled_rounds is not None
    ):
        raise PrivateTrainingError(
            "`private` must draw single records by a PoissonBatches without a "
            f"schedule, to be simulated. Received: {of!r}. Simulate the "
            "training on such samples."
        )
    if isinstance(data, Sampler):
        raise TypeError(
            "`data` must be public records, whose samples the simulation "
            f"draws. Received: a {type(data).__name__}. Pass (x, y)."
        )
    records = stored(data)
    population = len(Records(records))
    size = of.expected_sample_size / divided_by
    if not 1 <= size <= population:
        raise ValueError(
            "`divided_by` must leave samples of at least 1 record, and of at "
            f"most all {population:,} public records. Received: divided_by="
            f"{divided_by!r}, which makes samples of {size:.6g} of "
            f"{of.expected_sample_size:.6g} records. Take at least "
            f"{of.expected_sample_size / population:.3g}, and at most "
            f"{of.expected_sample_size:.6g}."
        )
    return PoissonBatches(
        records,
        sampling_probability=size / population,
        rounds_per_epoch=of.rounds_per_epoch,
        map=of.map,
        views=of.views,
    )


def _divided(query: DPQuery, by: float) -> DPQuery:
    """Returns a query with less noise, for averages of fewer records."""
    if (
        isinstance(query, ScheduledQuery)
        and query.clip is query.divisor is None
    ):
        average: DPQuery = query.query
    else:
        average = query
    if not isinstance(average, GaussianAverageQuery):
        raise PrivateTrainingError(
            "`private` must answer by a GaussianAverageQuery, perhaps with a "
            f"schedule of its noise, to be simulated. Received: {query!r}. "
            "Simulate the training with such a query."
        )
    result = GaussianAverageQuery(
        average.l2_norm_clip,
        average.sum_stddev / by,
        average.denominator / by,
        gamma=average.gamma,
        rescale=average.rescale,
    )
    if isinstance(query, ScheduledQuery):
        return ScheduledQuery(result, query.rounds, noise=query.noise)
    return result
