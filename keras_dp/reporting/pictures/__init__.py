"""Pictures of a ledger's cost, as SVG that any page can hold."""

from keras_dp.reporting.pictures.epsilon_picture import epsilon_picture
from keras_dp.reporting.pictures.explanation_block import explanation_block
from keras_dp.reporting.pictures.query_picture import query_picture
from keras_dp.reporting.pictures.trade_off_picture import trade_off_picture

__all__ = [
    "epsilon_picture",
    "explanation_block",
    "query_picture",
    "trade_off_picture",
]
