"""Mechanisms: one query per file, and what they are built from."""

from keras_dp import _training_extra as _training_extra
from keras_dp.dp_queries.adaptive.adaptive_clips import (
    AdaptiveClipSumQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.dp_queries.adaptive.adaptive_scale_query import AdaptiveScaleQuery
from keras_dp.dp_queries.adaptive.quantile_estimator_query import (
    QuantileEstimatorQuery,
)
from keras_dp.dp_queries.corrected_queries import (
    ErrorCorrectedQuery,
    KSDenoisedQuery,
)
from keras_dp.dp_queries.discrete.discretized_sum_query import (
    DiscretizedSumQuery,
)
from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
from keras_dp.dp_queries.discrete.preselected_vectors import PreselectedVectors
from keras_dp.dp_queries.dp_query import DPQuery
from keras_dp.dp_queries.dp_query import Mechanism as Mechanism
from keras_dp.dp_queries.dp_query import QueryResult as QueryResult
from keras_dp.dp_queries.gaussian.correlated_sum_query import CorrelatedSumQuery
from keras_dp.dp_queries.gaussian.gaussian_sums import (
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
)
from keras_dp.dp_queries.nested_query import NestedQuery
from keras_dp.dp_queries.records import LazyRecords as LazyRecords
from keras_dp.dp_queries.summing_query import NoPrivacySumQuery
from keras_dp.dp_queries.wrapping_query import NormalizedQuery

__all__ = [
    "AdaptiveClipSumQuery",
    "AdaptiveScaleQuery",
    "CorrelatedSumQuery",
    "DPQuery",
    "DiscretizedSumQuery",
    "EncodedSumQuery",
    "ErrorCorrectedQuery",
    "GaussianAverageQuery",
    "GaussianSumQuery",
    "JointClipQuery",
    "KSDenoisedQuery",
    "NestedQuery",
    "NoPrivacySumQuery",
    "NormalizedQuery",
    "PreselectedVectors",
    "QuantileAdaptiveClipSumQuery",
    "QuantileEstimatorQuery",
]
