import pytest

from keras_dp.noise import streams

# Kernels run on processors alone.
needs_kernels = pytest.mark.skipif(
    streams._has_accelerator(), reason="There is an accelerator."
)
