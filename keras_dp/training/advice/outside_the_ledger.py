"""Warns of costs that a ledger does not see.

A ledger holds its own rounds. It knows nothing of values that were computed on
the data before, of rounds in another ledger, or of a record that a batch holds
twice.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import adapted_layers
from keras_dp.keras_internals import dataset_stages, layers_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief
from keras_dp.training.advice.said import Said
from keras_dp.training.data.data_adapter import stages_by_contents

# The names of the ledgers that each model was trained with, by data set.
_ledgers_of: weakref.WeakKeyDictionary[keras.Model, dict[str, set[str]]] = (
    weakref.WeakKeyDictionary()
)
# Weights that have one value each before a training, and what gives it.
_BEGINNINGS = {
    "bias": "bias_initializer",
    "gamma": "gamma_initializer",
    "beta": "beta_initializer",
}
_TRAINED_PLAINLY = (
    "Model %r is held by a PrivateModel, and is now trained without privacy: "
    "no ledger covers this training, and the weights tell of its data. Call "
    "fit of its PrivateModel, unless this data is public."
)
_OF_PLAIN_METHODS = {
    "fit": _TRAINED_PLAINLY,
    "train_on_batch": _TRAINED_PLAINLY,
    "compile": (
        "Model %r is held by a PrivateModel, which keeps the loss, the metrics "
        "and the optimizer that it was compiled with. This call does not "
        "change them: compile before make_private, or compile the PrivateModel."
    ),
}


def warn_of_adapted_layers(model: keras.Model) -> None:
    """Warns of each layer whose values `adapt` may have computed on data."""
    for layer in adapted_layers(model):
        logging.warning(
            "Layer %r of class %s holds %s. If its method `adapt` computed "
            "them from private data, they are in the saved model without "
            "noise, and no ledger covers them. Adapt it with "
            "keras_dp.preprocessing or on public data, or give its values to "
            "the constructor.",
            layer.path,
            layer.class_name,
            layer.holds,
        )


def warn_of_earlier_training(model: keras.Model) -> None:
    """Warns of a model whose weights were trained before, as far as is seen."""
    optimizer = getattr(model, "optimizer", None)
    steps = 0
    if isinstance(optimizer, keras.optimizers.Optimizer):
        steps = int(keras.ops.convert_to_numpy(optimizer.iterations))
    if not steps and model not in _ledgers_of and (name := _moved_in(model)):
        logging.warning(
            "The weights of model %r are not fresh: layer %r has others than "
            "it begins with. If private data decided them, such as in a "
            "training before, this ledger does not cover that.",
            model.name,
            name,
        )
    if steps:
        logging.warning(
            "Model %r was trained without privacy before, for %d steps: no "
            "ledger covers these, and the weights tell of their data. If it "
            "was private, begin with a new model.",
            model.name,
            steps,
        )


def _moved_in(model: keras.Model) -> str | None:
    """Returns a layer with weights that all layers of its kind begin with.

    It is one in which they are others now; `None` if there is none.
    """
    layers = keras.layers
    kinds = (
        layers.Dense,
        layers.EinsumDense,
        layers.Conv1D,
        layers.Conv2D,
        layers.Conv3D,
        layers.LayerNormalization,
        layers.BatchNormalization,
    )
    initial = keras.initializers
    for layer in layers_of(model):
        if not isinstance(layer, kinds):
            continue
        for name, beginning in _BEGINNINGS.items():
            value = getattr(layer, name, None)
            begins = getattr(layer, beginning, None)
            if isinstance(value, keras.Variable) and isinstance(
                begins, (initial.Zeros, initial.Ones, initial.Constant)
            ):
                first = begins(value.shape, value.dtype)
                if bool(keras.ops.any(value != first)):
                    return str(layer.path)
    return None


def warn_of_other_ledgers(
    model: keras.Model, ledger: PrivacyLedger | LedgerOfChief
) -> None:
    """Warns if a model was trained on the same data set with another ledger.

    It knows the trainings of this process.

    Args:
        model: The user's model, which several private models may hold.
        ledger: The ledger of the training that is about to start.
    """
    if not isinstance(ledger, PrivacyLedger):
        return
    name = ledger.name or f"in memory, {id(ledger)}"
    seen = _ledgers_of.setdefault(model, {})
    names = seen.setdefault(ledger.header.dataset, set())
    if names and name not in names:
        logging.warning(
            "Model %r was trained on data set %r with another ledger before. "
            "Its weights cost what both ledgers hold together: the report of "
            "one of them is too low.",
            model.name,
            ledger.header.dataset,
        )
    names.add(name)


def warn_of_other_data(ledger: PrivacyLedger | LedgerOfChief) -> None:
    """Warns if `fit` is given data of which nobody capped the rows per unit.

    Args:
        ledger: The ledger of the training that is about to start.
    """
    header = ledger.header
    if header.rows_per_unit > 1:
        logging.warning(
            "`fit` was given data of its own, of which no record was left out: "
            "epsilon holds only if one %s has at most %d of its records. "
            "fit() without data takes the records of make_private.",
            header.unit,
            header.rows_per_unit,
        )


def warn_of_missing_rounds(optimizer: DPOptimizer, said: Said) -> None:
    """Warns if an optimizer has released more rounds than its ledger holds.

    Then an older copy has replaced the ledger that covered them, or the state
    of the optimizer was restored beside another ledger. If the ledger also
    holds rounds of other trainings, they can hide that.

    Args:
        optimizer: The optimizer of a model that is about to train, with the
            state that was restored.
        said: The warnings so far.
    """
    ledger = optimizer.ledger
    if not isinstance(ledger, PrivacyLedger):
        return
    released, held = optimizer.rounds_released, len(ledger)
    if released > held:
        said.warn(
            "The optimizer has released %s rounds, and the ledger %s holds %s. "
            "Reports of it are too low for these weights, unless their rounds "
            "were on other data. If an older copy replaced the ledger, put "
            "back the newest one, which counts the missing rounds.",
            f"{released:,}",
            ledger.name or "in memory",
            f"{held:,}",
        )


def warn_of_plain_training(model: keras.Model) -> None:
    """Makes a model warn when it is trained or compiled beside its private one.

    Attributes of the instance hide its `fit`, `train_on_batch` and `compile`.
    Each logs one warning and goes on. A model that is loaded from a file does
    not have them.
    """

    def warning(method: Callable[..., Any], text: str) -> Callable[..., Any]:
        warned: list[str] = []

        @functools.wraps(method)
        def warns(*args: Any, **options: Any) -> Any:
            if not warned:
                warned.append(model.name)
                logging.warning(text, model.name)
            return method(*args, **options)

        return warns

    for name, text in _OF_PLAIN_METHODS.items():
        if name not in vars(model):
            vars(model)[name] = warning(getattr(model, name), text)


def forget_compile(model: keras.Model) -> None:
    """Lets a model be compiled for its own `evaluate`, once it was trained."""
    vars(model).pop("compile", None)


def check_repeats(data: Any) -> bool:
    """Raises if the stages of a data set repeat records within a batch.

    A record that a batch holds k times moves its sum by up to k times the clip.
    Copies of a record that the data itself holds are not found.

    Args:
        data: The argument `x` of `fit`, other than a sampler.

    Returns:
        Whether the form of the data rules out that batches repeat records. This
        is so for arrays, and for data sets of known length or repeated after
        they are batched. For all other data a warning is logged.

    Raises:
        PrivateTrainingError: A `tf.data.Dataset` is repeated before it is
            batched.
    """
    if isinstance(data, tf.data.Dataset):
        stages = dataset_stages(data)
        found = stages_by_contents(data)
        if found:
            logging.warning(
                "The contents of a record may decide in which batch of this "
                "data other records stand, or how long these are: the data set "
                "has the stages %r. A record then moves several sums by more "
                "than its clip. The ledger says so, and its epsilon is for a "
                "record that is zeroed after batching, not replaced. Filter "
                "and sort the records before training, pad all of them to one "
                "length, and use keras_dp.sampling.PoissonBatches.",
                found,
            )
        batches = [i for i, name in enumerate(stages) if "Batch" in name]
        repeats = [i for i, name in enumerate(stages) if "Repeat" in name]
        if batches and repeats and min(repeats) < max(batches):
            raise PrivateTrainingError(
                "A data set must be batched before it is repeated: a batch "
                "across the end of the data can hold a record twice, which "
                "moves its sum by twice the clip. Received: the stages "
                f"{stages!r}. Call dataset.batch(...).repeat(), or use "
                "keras_dp.sampling.PoissonBatches."
            )
        size = int(data.cardinality())
        if size >= 0 or (size == tf.data.INFINITE_CARDINALITY and repeats):
            return True
    elif all(
        isinstance(leaf, (np.ndarray, tf.Tensor))
        for leaf in keras.tree.flatten(data)
    ):
        return True
    logging.warning(
        "Each batch of this data counts as one sample. No batch may hold a "
        "record twice, for example where the data starts again: the record "
        "would move its sum by twice the clip. This cannot be verified."
    )
    return False
