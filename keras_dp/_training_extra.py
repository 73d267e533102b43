"""Says what to install where Keras and TensorFlow are missing.

Each package that trains imports this module first. The others need NumPy and
SciPy only.
"""

try:
    import absl
    import h5py
    import keras
    import tensorflow
except ModuleNotFoundError as error:
    raise ImportError(
        "Training must have Keras and TensorFlow. Received: "
        f"{error}. Install one of the extras that bring them: "
        'pip install "keras_dp[cpu]", "keras_dp[tensorflow]" or '
        '"keras_dp[gpu]".'
    ) from error

__all__ = ["absl", "h5py", "keras", "tensorflow"]
