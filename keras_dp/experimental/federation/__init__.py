"""Federated averaging: in one process, or over many machines with Flower.

The classes for many machines, and Flower with them, are imported when they are
first used.
"""

from typing import TYPE_CHECKING, Any

from keras_dp import _check
from keras_dp import _training_extra as _training_extra
from keras_dp.experimental.federation.federated_model import (
    FederatedModel,
    LocalTraining,
)

if TYPE_CHECKING:
    from keras_dp.experimental.federation.flower import (
        FlowerClient,
        FlowerStrategy,
    )

__all__ = ["FederatedModel", "FlowerClient", "FlowerStrategy", "LocalTraining"]


if not TYPE_CHECKING:  # Else every misspelt name would pass as `Any`.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}"
            )
        with _check.needing("flwr", "for federations over machines", "flower"):
            from keras_dp.experimental.federation import flower
        return getattr(flower, name)
