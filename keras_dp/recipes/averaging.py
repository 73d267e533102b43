"""Averages of weights, in which much of the noise cancels."""

from keras_dp.optimizers import DPOptimizer

# An average is over about so many parts of a training: the last tenth.
_PARTS = 10


def average_weights(optimizer: DPOptimizer, rounds: int) -> int | None:
    """Makes a private optimizer average the weights of a training.

    It is a moving average over about the last tenth of the rounds: weights of
    `k` rounds ago count `(1 - 10 / rounds)**k` as much as the last ones.

    Args:
        optimizer: Not built yet. One that averages already stays as it is.
        rounds: The number of rounds of the training, >= 1.

    Returns:
        Over how many rounds it averages, or `None` if it did so before.
    """
    if optimizer.use_ema:
        return None
    optimizer.use_ema = True
    optimizer.ema_momentum = max(0.0, 1 - _PARTS / rounds)
    return max(1, round(rounds / _PARTS))
