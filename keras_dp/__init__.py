"""Differentially private training for Keras 3, recorded and replayable.

The names below are imported when they are first used: reading a ledger and
replaying it never loads TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_dp._version import __version__

if TYPE_CHECKING:
    from keras_dp import (
        accountants,
        dp_queries,
        errors,
        ledger,
        optimizers,
        reporting,
        sampling,
    )
    from keras_dp.dp_queries import (
        DPQuery,
        GaussianAverageQuery,
        GaussianSumQuery,
        NestedQuery,
        NoPrivacySumQuery,
    )
    from keras_dp.ledger import PrivacyLedger
    from keras_dp.optimizers import (
        DPOptimizer,
        PrivateModel,
        VariableGroups,
        group_variables,
    )

_MODULES = (
    "accountants",
    "dp_queries",
    "errors",
    "ledger",
    "optimizers",
    "reporting",
    "sampling",
)
_HOMES = {
    "DPOptimizer": "optimizers",
    "DPQuery": "dp_queries",
    "GaussianAverageQuery": "dp_queries",
    "GaussianSumQuery": "dp_queries",
    "NestedQuery": "dp_queries",
    "NoPrivacySumQuery": "dp_queries",
    "PrivacyLedger": "ledger",
    "PrivateModel": "optimizers",
    "VariableGroups": "optimizers",
    "group_variables": "optimizers",
}

__all__ = [
    "DPOptimizer",
    "DPQuery",
    "GaussianAverageQuery",
    "GaussianSumQuery",
    "NestedQuery",
    "NoPrivacySumQuery",
    "PrivacyLedger",
    "PrivateModel",
    "VariableGroups",
    "__version__",
    "accountants",
    "dp_queries",
    "errors",
    "group_variables",
    "ledger",
    "optimizers",
    "reporting",
    "sampling",
]


if not TYPE_CHECKING:  # Else every misspelt name would pass as `Any`.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"keras_dp.{name}")
        if name in _HOMES:
            module = importlib.import_module(f"keras_dp.{_HOMES[name]}")
            return getattr(module, name)
        raise AttributeError(f"module 'keras_dp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
