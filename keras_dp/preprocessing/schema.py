"""The schema of a column: what is public of its records before any is read.

Public are a dtype and the shape of a record, as an array has them or as a
`tf.data.Dataset` declares them. A dtype is public also where another library
chose it by the values. Lists have no schema: which kinds of entries they hold
follows from the records, and only a round that counts may tell of it.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from keras_dp.sampling.datasets import is_dataset, record_specs


class Schema(NamedTuple):
    """The dtype and the shape of the records of a column.

    Attributes:
        dtype: As in NumPy; `object` for text of any length.
        shape: Without the axis of records; `None` where it may differ.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, column: Any) -> Self:
        """Returns the schema of what has a dtype and the shape of a record.

        Args:
            column: A `tf.TensorSpec`, say.
        """
        dtype = getattr(column.dtype, "as_numpy_dtype", column.dtype)
        return cls(np.dtype(dtype), tuple(column.shape))

    @property
    def features(self) -> tuple[int | None, ...]:
        """The shape of a record, where a number alone is one feature."""
        return self.shape or (1,)


def schema_of(data: Any) -> Schema | None:
    """Returns the schema of one column, `None` for lists and a `PyDataset`.

    Args:
        data: See `Adapter.adapt`.

    Raises:
        TypeError: A data set has several columns.
        ValueError: A data set cannot be read once; see `batches_of`.

    >>> schema_of(np.zeros([5, 3], np.int32))
    Schema(dtype=dtype('int32'), shape=(3,))
    >>> schema_of(["a", "b"]) is None
    True
    """
    if is_dataset(data):
        spec = first_of(record_specs(data))
        if spec is not None and not hasattr(spec, "shape"):
            raise TypeError(
                "`data` must be one column. Received: a data set of "
                f"{spec!r}. Map it to one of them, or use FeatureSpace, which "
                "takes several."
            )
        return None if spec is None else Schema.of(spec)
    values = data.to_numpy() if hasattr(data, "to_numpy") else data
    if not hasattr(values, "dtype") or not hasattr(values, "shape"):
        return None
    whole = Schema.of(values)
    return Schema(whole.dtype, whole.shape[1:])


def first_of(element: Any) -> Any:
    """Returns the inputs of an element `(x, y)`, else the element."""
    return element[0] if isinstance(element, tuple) else element
