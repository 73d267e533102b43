"""Which kinds of data can be trained on, and as what arrays.

The one place that says how to change the others. Data is known by what it has:
nothing here imports TensorFlow, SciPy or pandas. No entry is ever shown.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _nests

# This is `dtype.isbuiltin` of types that another package adds to NumPy.
_ADDED = 2


def is_dataset(data: Any) -> bool:
    """Whether this is a `tf.data.Dataset` or a `keras.utils.PyDataset`."""
    return is_tensorflow(data) or is_keras(data)


def is_tensorflow(data: Any) -> bool:
    """Whether this is a `tf.data.Dataset`."""
    return hasattr(data, "as_numpy_iterator") and hasattr(data, "element_spec")


def is_keras(data: Any) -> bool:
    """Whether this is a `keras.utils.PyDataset`."""
    return any(kind.__name__ == "PyDataset" for kind in type(data).__mro__)


def as_array(leaf: Any, name: str, path: str) -> npt.NDArray[Any]:
    """Returns an array-like as an array of entries of a fixed size.

    A table (a pandas DataFrame, say) of numbers becomes `[records, columns]`
    and a single column (a Series) `[records, 1]`, as in Keras. Python's text
    becomes UTF-8, as bytes of the length of the longest, which layers such as
    `StringLookup` take. Messages say that the leaf is at `path` of `name`.
    """
    is_column = hasattr(leaf, "to_numpy")
    is_table = is_column and hasattr(leaf, "columns")
    values: npt.NDArray[Any] = (
        np.asarray(leaf.to_numpy()) if is_column else np.asarray(leaf)
    )
    if is_table and values.dtype.kind not in "biufc":
        raise ValueError(
            f"`{name}` must have tables of numbers only. Received: dtype "
            f"{values.dtype} at {path}. Pass dict(table), which gives the "
            "model one input a column, or table.astype('float32')."
        )
    if is_column and not is_table:
        values = values[:, np.newaxis]
    if not values.ndim:
        raise ValueError(
            f"`{name}` must have arrays with a first axis and a dtype of "
            f"fixed size. Received: shape {values.shape} and dtype "
            f"{values.dtype} at {path}."
        )
    if values.dtype.hasobject:
        return _utf8(values, name, path)
    return values


def _utf8(
    values: npt.NDArray[Any], name: str, path: str
) -> npt.NDArray[np.bytes_]:
    """Returns text as bytes; NumPy drops zeros at the end of an entry."""
    entries = [
        each.encode() if isinstance(each, str) else each
        for each in values.ravel().tolist()
    ]
    others = {type(each).__name__ for each in entries} - {"bytes"}
    if others:
        raise ValueError(
            f"`{name}` must have arrays of numbers or of text, with a dtype "
            f"of fixed size. Received: dtype {values.dtype} at {path}, with "
            f"entries of type {sorted(others)!r}. Fill in missing text, or "
            "name a dtype: np.asarray(values, dtype=...)."
        )
    if any(each.endswith(b"\0") for each in entries):
        raise ValueError(
            f"`{name}` must have bytes that do not end in a zero, which NumPy "
            f"would drop. Received: such bytes at {path}. Decode them first, "
            "or read them with TFRecordShards."
        )
    return np.array(entries, np.bytes_).reshape(values.shape)


def check_kinds(
    nest: Any, name: str, path: str = "", *, needs_rank: bool = True
) -> None:
    """Raises for ragged or sparse data, for times, and for lists of numbers.

    Leaves may be the specs of what a data set yields; `needs_rank` says whether
    their rank must be known.
    """
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
    if isinstance(nest, np.ma.MaskedArray):
        raise ValueError(
            f"`{name}` must have arrays without a mask, which no layer would "
            f"see. Received: a {kind}{where}. Pass what its filled(value) "
            "returns, and the mask as an input of its own where it matters."
        )
    dtype = getattr(nest, "dtype", None)
    # Models compute with bfloat16, which NumPy does not take for numbers.
    are_foreign = getattr(dtype, "isbuiltin", 1) == _ADDED
    if str(dtype) != "bfloat16" and (
        are_foreign or getattr(dtype, "kind", None) in ("m", "M", "V")
    ):
        raise ValueError(
            f"`{name}` must have arrays of numbers or of text. Received: dtype "
            f"{dtype}{where}. Make times numbers, such as (times - start) / "
            "np.timedelta64(1, 'D'), fields arrays of their own, and other "
            "kinds of numbers float32."
        )
    shape = getattr(nest, "shape", ())
    if needs_rank and getattr(shape, "rank", 0) is None:
        raise ValueError(
            f"`{name}` must have a known rank. Received: a {kind} of unknown "
            f"shape{where}. Name it, by output_signature=... of from_generator "
            "or by tf.ensure_shape in a map."
        )
    for key, child in _nests.children(nest) or ():
        check_kinds(child, name, f"{path}/{key}", needs_rank=needs_rank)
