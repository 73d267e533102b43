"""Limits of clips that change from round to round."""

from keras_dp import _check

# Clips, and the noise made of them, stay far inside the range of float32.
SMALLEST_CLIP, LARGEST_CLIP = 1e-20, 1e20
_SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-10, 1e10


def check_clip(**named: float) -> None:
    """Raises unless every value is a possible clip."""
    for name, value in named.items():
        _check.finite_positive(**{name: value})
        if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
            raise ValueError(
                f"`{name}` must be in [{SMALLEST_CLIP}, {LARGEST_CLIP}]. "
                f"Received: {name}={value!r}."
            )


def check_multiplier(**named: float) -> None:
    """Raises unless noise of these multiples of a clip fits float32."""
    for name, value in named.items():
        _check.finite_non_negative(**{name: value})
        if value and not _SMALLEST_MULTIPLIER <= value <= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"`{name}` must be 0, or in [{_SMALLEST_MULTIPLIER}, "
                f"{_LARGEST_MULTIPLIER}]. Received: {name}={value!r}."
            )
