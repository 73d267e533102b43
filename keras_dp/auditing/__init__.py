"""Tests whether a training is as private as its ledger states.

`check` runs rounds on neighbouring samples and compares them with the ledger.
Canaries are records that a random coin inserts or leaves out. The scores of
canaries after a training give a lower bound on epsilon.

Only `check` and `PhantomCanaries` import TensorFlow.
"""

from typing import TYPE_CHECKING, Any

from keras_dp.auditing.one_run import LowerBound as LowerBound
from keras_dp.auditing.one_run import OneRun, Scores

if TYPE_CHECKING:
    from keras_dp.auditing.neighbouring_rounds import check
    from keras_dp.auditing.phantom_canaries import PhantomCanaries

__all__ = ["OneRun", "PhantomCanaries", "Scores", "check"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in ("PhantomCanaries", "check"):
            raise AttributeError(
                f"module 'keras_dp.auditing' has no attribute {name!r}"
            )
        from keras_dp import _training_extra  # noqa: F401 - It may raise.
        from keras_dp.auditing.neighbouring_rounds import check
        from keras_dp.auditing.phantom_canaries import PhantomCanaries

        return check if name == "check" else PhantomCanaries
