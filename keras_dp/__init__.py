"""Differentially private training for Keras 3, recorded and replayable.

The names below are imported when they are first used: reading a ledger and
replaying it never loads TensorFlow. Where Keras runs on TensorFlow, what trains
is imported as soon as both are, so that Keras can load saved private models.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from keras_dp import _after_imports
from keras_dp._version import __version__

if TYPE_CHECKING:
    from keras_dp import (
        accountants,
        auditing,
        budgets,
        dp_queries,
        errors,
        federation,
        interchange,
        ledger,
        optimizers,
        planning,
        preprocessing,
        recipes,
        reporting,
        sampling,
        training,
    )
    from keras_dp.dp_queries import (
        AdaptiveClipSumQuery,
        DiscreteGaussianSumQuery,
        DiscretizedSumQuery,
        DPQuery,
        EncodedSumQuery,
        ErrorCorrectedQuery,
        GaussianAverageQuery,
        GaussianSumQuery,
        JointClipQuery,
        KSDenoisedQuery,
        NestedQuery,
        NoPrivacyAverageQuery,
        NoPrivacyQuantileEstimatorQuery,
        NoPrivacySumQuery,
        NormalizedQuery,
        PeriodicRoundRestartIndicator,
        PreselectedVectors,
        QuantileAdaptiveClipSumQuery,
        QuantileEstimatorQuery,
        QuantizedSumQuery,
        RestartIndicator,
        RestartQuery,
        TreeCumulativeSumQuery,
        TreeResidualSumQuery,
    )
    from keras_dp.ledger import (
        PrivacyLedger,
    )
    from keras_dp.optimizers import (
        DPSGD,
        DPAdagrad,
        DPAdam,
        DPAdamW,
        DPOptimizer,
        DPRMSprop,
        VariableGroups,
        group_variables,
        plan_groups,
    )
    from keras_dp.recipes import (
        make_private,
        replace_batch_normalization,
    )
    from keras_dp.sampling import (
        AllocatedBatches,
        FixedSizeBatches,
        PoissonBatches,
        ShuffledBatches,
        UserBatches,
    )
    from keras_dp.training import (
        EpsilonProgress,
        FederatedModel,
        LocalTraining,
        PrivacyTarget,
        PrivateClassCounts,
        PrivateClippedShare,
        PrivateGradientNorm,
        PrivateGradients,
        PrivateLoss,
        PrivateMean,
        PrivateModel,
        RunDetails,
        SaveModel,
        mean_gradient_norms,
        plan_batch_statistics,
    )

_MODULES = (
    "accountants",
    "auditing",
    "budgets",
    "dp_queries",
    "errors",
    "federation",
    "interchange",
    "ledger",
    "optimizers",
    "planning",
    "preprocessing",
    "recipes",
    "reporting",
    "sampling",
    "training",
)
_HOMES = {
    "AdaptiveClipSumQuery": "dp_queries",
    "AllocatedBatches": "sampling",
    "DPAdagrad": "optimizers",
    "DPAdam": "optimizers",
    "DPAdamW": "optimizers",
    "DPOptimizer": "optimizers",
    "DPQuery": "dp_queries",
    "DPRMSprop": "optimizers",
    "DPSGD": "optimizers",
    "DiscreteGaussianSumQuery": "dp_queries",
    "DiscretizedSumQuery": "dp_queries",
    "EncodedSumQuery": "dp_queries",
    "EpsilonProgress": "training",
    "ErrorCorrectedQuery": "dp_queries",
    "FederatedModel": "training",
    "FixedSizeBatches": "sampling",
    "GaussianAverageQuery": "dp_queries",
    "GaussianSumQuery": "dp_queries",
    "JointClipQuery": "dp_queries",
    "KSDenoisedQuery": "dp_queries",
    "LocalTraining": "training",
    "NestedQuery": "dp_queries",
    "NoPrivacyAverageQuery": "dp_queries",
    "NoPrivacyQuantileEstimatorQuery": "dp_queries",
    "NoPrivacySumQuery": "dp_queries",
    "NormalizedQuery": "dp_queries",
    "PeriodicRoundRestartIndicator": "dp_queries",
    "PoissonBatches": "sampling",
    "PreselectedVectors": "dp_queries",
    "PrivacyLedger": "ledger",
    "PrivacyTarget": "training",
    "PrivateClassCounts": "training",
    "PrivateClippedShare": "training",
    "PrivateGradientNorm": "training",
    "PrivateGradients": "training",
    "PrivateLoss": "training",
    "PrivateMean": "training",
    "PrivateModel": "training",
    "QuantileAdaptiveClipSumQuery": "dp_queries",
    "QuantileEstimatorQuery": "dp_queries",
    "QuantizedSumQuery": "dp_queries",
    "RestartIndicator": "dp_queries",
    "RestartQuery": "dp_queries",
    "RunDetails": "training",
    "SaveModel": "training",
    "ShuffledBatches": "sampling",
    "TreeCumulativeSumQuery": "dp_queries",
    "TreeResidualSumQuery": "dp_queries",
    "UserBatches": "sampling",
    "VariableGroups": "optimizers",
    "group_variables": "optimizers",
    "make_private": "recipes",
    "mean_gradient_norms": "training",
    "plan_batch_statistics": "training",
    "plan_groups": "optimizers",
    "replace_batch_normalization": "recipes",
}

__all__ = [
    "DPSGD",
    "AdaptiveClipSumQuery",
    "AllocatedBatches",
    "DPAdagrad",
    "DPAdam",
    "DPAdamW",
    "DPOptimizer",
    "DPQuery",
    "DPRMSprop",
    "DiscreteGaussianSumQuery",
    "DiscretizedSumQuery",
    "EncodedSumQuery",
    "EpsilonProgress",
    "ErrorCorrectedQuery",
    "FederatedModel",
    "FixedSizeBatches",
    "GaussianAverageQuery",
    "GaussianSumQuery",
    "JointClipQuery",
    "KSDenoisedQuery",
    "LocalTraining",
    "NestedQuery",
    "NoPrivacyAverageQuery",
    "NoPrivacyQuantileEstimatorQuery",
    "NoPrivacySumQuery",
    "NormalizedQuery",
    "PeriodicRoundRestartIndicator",
    "PoissonBatches",
    "PreselectedVectors",
    "PrivacyLedger",
    "PrivacyTarget",
    "PrivateClassCounts",
    "PrivateClippedShare",
    "PrivateGradientNorm",
    "PrivateGradients",
    "PrivateLoss",
    "PrivateMean",
    "PrivateModel",
    "QuantileAdaptiveClipSumQuery",
    "QuantileEstimatorQuery",
    "QuantizedSumQuery",
    "RestartIndicator",
    "RestartQuery",
    "RunDetails",
    "SaveModel",
    "ShuffledBatches",
    "TreeCumulativeSumQuery",
    "TreeResidualSumQuery",
    "UserBatches",
    "VariableGroups",
    "__version__",
    "accountants",
    "auditing",
    "budgets",
    "dp_queries",
    "errors",
    "federation",
    "group_variables",
    "interchange",
    "ledger",
    "make_private",
    "mean_gradient_norms",
    "optimizers",
    "plan_batch_statistics",
    "plan_groups",
    "planning",
    "preprocessing",
    "recipes",
    "replace_batch_normalization",
    "reporting",
    "sampling",
    "training",
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


def _register() -> None:
    """Lets Keras load what it saved of private models."""
    if sys.modules["keras"].backend.backend() == "tensorflow":
        importlib.import_module("keras_dp.training")


_after_imports.call(_register, {"keras", "tensorflow"})
