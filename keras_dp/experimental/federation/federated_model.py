"""Private federated averaging: users train, and their updates are averaged."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import keras

from keras_dp import _check
from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.experimental.federation.local_updates import LocalTraining
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.private_model import PrivateModel
from keras_dp.training.step.step_parts import StepParts
from keras_dp.training.training import Training


@keras.saving.register_keras_serializable(package="keras_dp")
class FederatedModel(PrivateModel):
    """Trains by federated averaging, with user-level privacy (DP-FedAvg).

    Each round samples users. Each sampled user trains a copy of the model on
    the user's own records, beginning at the present weights. The change of the
    weights (before minus after) is the user's record for the query. The query
    clips, sums and noises it like any other record. The optimizer takes the
    answer for a gradient. With `DPSGD(1.0)` the weights become the noised
    average of the users' weights.

    The ledger, targets, callbacks and resuming after a crash work as in
    `PrivateModel`. One process simulates the users, many at once, and holds the
    updates of all users of a physical batch in memory. A large model needs a
    small batch: pass `UserBatches(..., physical_batch_size=)`, a multiple of
    `records_per_user`.

    Guarantee: the guarantee of `PrivateModel` holds for a user with all of the
    user's records. Layers may make the records of one user interact.

    It has the attributes of `PrivateModel`.

    Attributes:
        local: How users train.

    Source: McMahan et al. (2018), arXiv:1710.06963v3, Algorithm 1, with the
    public denominator q W of its equation (2).

    >>> import keras_dp, numpy as np
    >>> x, y = np.zeros([64, 3], "float32"), np.zeros([64, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> private = FederatedModel(model, LocalTraining(0.1, batch_size=2))
    >>> private.compile(
    ...     keras_dp.DPSGD(1.0,
    ...         ledger=keras_dp.PrivacyLedger.in_memory(
    ...             dataset="doc", unit="user"),
    ...         query=keras_dp.GaussianAverageQuery(
    ...             1.0, noise_multiplier=1.1, denominator=4)),
    ...     loss="mse")
    >>> samples = keras_dp.UserBatches(
    ...     (x, y), user_ids=np.arange(64) % 16,
    ...     sampling_probability=0.25, records_per_user=4)
    >>> len(private.fit(samples, epochs=1, verbose=0).epoch)
    1
    """

    def __init__(
        self, model: keras.Model, local: LocalTraining, **kwargs: Any
    ) -> None:
        _check.kind(LocalTraining, local=local)
        # Users cannot interact, so there is nothing to check.
        super().__init__(model, self_check_examples=0, **kwargs)
        self.local = local

    @override
    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["self_check_examples"]
        return {**config, "local": dataclasses.asdict(self.local)}

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        local = LocalTraining(**config["local"])
        return super().from_config({**config, "local": local}, custom_objects)

    @override
    def step_parts(self) -> StepParts:
        return dataclasses.replace(
            super().step_parts(), local=self.local.updates
        )

    @override
    def _training(
        self, adapter: DataAdapter, *fit: Any, **run: Any
    ) -> Training:
        if adapter.unit != "user":
            raise TypeError(
                "`x` must be UserBatches, which know whose records they draw. "
                f"Received: a {type(adapter.source).__name__}. Call "
                "fit(UserBatches((x, y), user_ids=...))."
            )
        if Replicas(self.distribute_strategy).are_many:
            raise PrivateTrainingError(
                "A FederatedModel must train on one device. Received: the "
                f"strategy {self.distribute_strategy!r}. Make it outside of "
                "its scope."
            )
        if adapter.is_sampler:
            self.local.steps(adapter.source.records_per_user)
        return super()._training(adapter, *fit, **run)
