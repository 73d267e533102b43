"""Federated averaging: in one process, or over many machines with Flower.

The classes, and Flower with two of them, are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_dp.federation.federated_model import FederatedModel
    from keras_dp.federation.flower_client import FlowerClient
    from keras_dp.federation.flower_strategy import FlowerStrategy

__all__ = ["FederatedModel", "FlowerClient", "FlowerStrategy"]


if not TYPE_CHECKING:  # Else every misspelt name would pass as `Any`.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}"
            )
        if name == "FederatedModel":
            from keras_dp.federation import federated_model as home
        else:
            home = _home_with_flower(name)
        return getattr(home, name)

    def _home_with_flower(name: str) -> Any:
        try:
            from keras_dp.federation import flower_client, flower_strategy
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "flwr":
                raise
            raise ImportError(
                "Flower must be installed for federations over machines: "
                "pip install keras_dp[flower]"
            ) from error
        return flower_client if name == "FlowerClient" else flower_strategy
