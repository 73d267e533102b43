"""Warns of the cost of batches that the library did not draw."""

import math
import weakref

import keras
import tensorflow as tf
from absl import logging

from keras_dp.accountants.replay import Replay
from keras_dp.ledger import GaussianSum, Header, PoissonSampling, Round
from keras_dp.training.data.data_adapter import DataAdapter

_warned: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def warn_of_unsampled_batches(
    model: keras.Model,
    adapter: DataAdapter,
    planned: Round,
    batch_size: int,
    delta: float,
    header: Header,
) -> None:
    """Warns what an epoch of unverified batches costs, and Poisson samples.

    It warns once for each model. It says nothing if the number of records is
    not known, if the first batch holds all of them, if queries are not Gaussian
    sums, or if Poisson samples would have no finite epsilon either.

    Args:
        model: The user's model.
        adapter: The data of `fit`.
        planned: The first round.
        batch_size: The number of records in the first batch.
        delta: The delta of both epsilons.
        header: The header of the ledger, with the privacy unit and its rows.
    """
    records, data = _records_of(adapter, batch_size), adapter.source
    if model in _warned or records is None or batch_size >= records:
        return
    if not all(isinstance(each, GaussianSum) for each in planned.queries):
        return
    rounds = math.ceil(records / batch_size)
    sampling = PoissonSampling(batch_size / records, drawn_by_library=True)
    found, drawn = (
        Replay([(each, rounds)], header=header).claim(delta=delta)
        for each in (planned, Round(sampling, planned.queries))
    )
    if not math.isfinite(drawn.epsilon):
        return
    _warned.add(model)
    is_arrays = not isinstance(data, (tf.data.Dataset, keras.utils.PyDataset))
    call = (
        "PoissonBatches((x, y),"
        if is_arrays
        else ("PoissonBatches.from_dataset(dataset,")
    )
    logging.warning(
        "The library did not draw these batches, so they are recorded without "
        "amplification by sampling. An epoch of %d rounds: %s. With samples "
        "that the library draws, of %d records on average: %s. Call "
        "fit(keras_dp.%s sampling_probability=%d / %d)).",
        rounds,
        found.sentence(header.unit),
        batch_size,
        drawn.sentence(header.unit),
        call,
        batch_size,
        records,
    )


def _records_of(adapter: DataAdapter, batch_size: int) -> int | None:
    """Returns the number of records, or `None` if it is not known.

    For data sets it is the number of batches times `batch_size`.
    """
    data, batches = adapter.source, None
    if isinstance(data, tf.data.Dataset):
        cardinality = int(data.cardinality())
        batches = cardinality if cardinality >= 0 else None
    elif isinstance(data, keras.utils.PyDataset):
        batches = data.num_batches
    else:
        return adapter.population_size
    return None if batches is None else batches * batch_size
