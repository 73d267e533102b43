"""Says which kinds of data cannot be trained on, and how to change them.

The one place for it, wherever data is given. Data is known by what it has:
nothing here imports TensorFlow, SciPy or pandas. No entry is ever shown.
"""

from typing import Any

from keras_dp import _nests


def check_kinds(nest: Any, name: str, *, needs_rank: bool = True) -> None:
    """Raises for ragged or sparse data, and for lists of numbers.

    Args:
        nest: Arrays, tensors, or the specs of what a data set yields.
        name: The argument, for messages.
        needs_rank: Whether the rank of specs must be known.

    Raises:
        TypeError: A leaf is no array, but numbers in a list.
        ValueError: A leaf is ragged or sparse, or of an unknown rank.
    """
    _check(nest, name, "", needs_rank)


def _check(nest: Any, name: str, path: str, needs_rank: bool) -> None:
    kind = type(nest).__name__
    where = f" at {path}" if path else ""
    if kind.startswith("Ragged"):
        raise ValueError(
            f"`{name}` must be dense: a record has one shape. Received: a "
            f"{kind}{where}. Pad the records, by ragged.to_tensor(shape=...); "
            "of a data set in a map."
        )
    if kind.startswith("Sparse"):
        raise ValueError(
            f"`{name}` must be dense. Received: a {kind}{where}. Make it so by "
            "tf.sparse.to_dense(...); of a data set in a map."
        )
    if hasattr(nest, "tocsr"):
        raise ValueError(
            f"`{name}` must be dense. Received: a {kind} of SciPy{where}. "
            "Pass what its toarray() returns, or in a data set "
            "tf.sparse.to_dense(...) of some records at once."
        )
    if isinstance(nest, bool | int | float | complex | str | bytes):
        raise TypeError(
            f"`{name}` must be an array, or a nest of arrays, with the records "
            f"along the first axis. Received: {kind} at {path or '/'}. Make "
            "lists of numbers arrays with np.asarray."
        )
    shape = getattr(nest, "shape", ())
    if needs_rank and getattr(shape, "rank", 0) is None:
        raise ValueError(
            f"`{name}` must have a known rank. Received: a {kind} of unknown "
            f"shape{where}. Name it, by output_signature=... of from_generator "
            "or by tf.ensure_shape in a map."
        )
    for key, child in _nests.children(nest) or ():
        _check(child, name, f"{path}/{key}", needs_rank)
