"""Tries out the parts of a search before the ledger holds it."""

import dataclasses
import math
import secrets
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp.ledger import PrivacyLedger
from keras_dp.sampling import PoissonBatches
from keras_dp.training.data.in_range import check_in_range
from keras_dp.tuning.private_score import PrivateScore
from keras_dp.tuning.trials import Trials

_RECORDS, _NOISE_MULTIPLIER = 64, 1.0


def rehearse(trials: Trials, settings: Mapping[str, Any]) -> None:
    """Trains for one round on made-up records, and scores the model.

    Numbers with a point are random in [0, 1), all others are 0. What comes out
    is dropped: it shows only whether model, loss and score go together.

    Args:
        trials: The trials of a search. Their samples are
            `PoissonBatches` without microbatches.
        settings: The settings of one trial.

    Raises:
        Exception: Whatever is wrong. It has nothing to do with the data.
    """
    score = trials.score
    if isinstance(score, PrivateScore):
        score = score.on_made_up(_made_up)
    size, _ = trials.kind_of(settings)
    short = dataclasses.replace(
        trials,
        samples={
            size: PoissonBatches(
                _made_up(trials.samples[size].record_structure),
                sampling_probability=0.5,
                rounds_per_epoch=1,
                map=trials.samples[size].map,
            )
        },
        score=score,
        defaults={**trials.defaults, "epochs": 1},
    )
    short.run(settings, _NOISE_MULTIPLIER)


def fault_of_records(
    trials: Trials, settings: Mapping[str, Any]
) -> ValueError | None:
    """Evaluates an untrained model on every record that trials may see.

    In a trial a record that raises would decide how the search ends, and it
    would do so as often as it is drawn. What comes out is dropped.

    Args:
        trials: The trials of a search.
        settings: The settings of one trial.

    Returns:
        An error that says whether labels or ids are out of range. `None` if
        none are.

    Raises:
        Exception: Whatever else a record causes.
    """
    ledger = PrivacyLedger.in_memory(dataset="none", unit=trials.unit)
    private = trials.private(settings, _NOISE_MULTIPLIER, ledger)
    try:
        private.evaluate(private.samples, verbose=0)
        if isinstance(trials.score, PrivateScore):
            trials.score.total(private.model)
    except tf.errors.InvalidArgumentError as error:
        try:
            check_in_range(error)
        except ValueError as fault:
            return ValueError(str(fault))  # Without the text of the first one.
        raise
    return None


def _made_up(structure: Any) -> Any:
    """Returns records that nobody measured, of a structure."""

    def leaf(spec: Any) -> npt.NDArray[Any]:
        shape = (_RECORDS, *spec.shape)
        if spec.dtype.kind != "f":
            return np.zeros(shape, spec.dtype)
        words = secrets.token_bytes(4 * math.prod(shape))
        values = np.frombuffer(words, np.uint32).reshape(shape) / 2.0**32
        return values.astype(spec.dtype)

    return keras.tree.map_structure(leaf, structure)
