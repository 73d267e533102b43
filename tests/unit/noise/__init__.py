import pytest

from keras_dp._devices import has_accelerator

# Kernels run on processors alone.
needs_kernels = pytest.mark.skipif(
    has_accelerator(), reason="There is an accelerator."
)
