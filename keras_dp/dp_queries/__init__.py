"""Mechanisms: one query per file, and what they are built from."""

from keras_dp.dp_queries.dp_query import DPQuery, GaussianEvent, QueryResult
from keras_dp.dp_queries.gaussian_query import (
    GaussianAverageQuery,
    GaussianSumQuery,
)
from keras_dp.dp_queries.nested_query import NestedQuery
from keras_dp.dp_queries.no_privacy_query import NoPrivacySumQuery
from keras_dp.dp_queries.records import LazyRecords

__all__ = [
    "DPQuery",
    "GaussianAverageQuery",
    "GaussianEvent",
    "GaussianSumQuery",
    "LazyRecords",
    "NestedQuery",
    "NoPrivacySumQuery",
    "QueryResult",
]
