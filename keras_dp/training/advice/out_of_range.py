"""Says which ids or labels are out of range, and shows none of them."""

import re

import tensorflow as tf

# The words of TensorFlow 2.21, its range, and what is said in their place.
_RULES = (
    (
        re.compile(r"outside the valid range of (\[0, \d+\))"),
        "`y` must hold integer labels in {range}, one for each output of the "
        "model. Received: labels outside of it. Number the classes from 0, "
        "such as by np.unique(y, return_inverse=True), or give the last layer "
        "more units.",
    ),
    (
        re.compile(r"indices.* is not in (\[0, \d+\))"),
        "`x` must hold ids in {range}, the rows of the table that {node} looks "
        "them up in. Received: ids outside of it. Number the ids from 0, or "
        "give the Embedding a larger input_dim.",
    ),
)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


def check_in_range(error: tf.errors.InvalidArgumentError) -> None:
    """Raises in the place of an error of TensorFlow that shows ids or labels.

    Args:
        error: Any error of a step.

    Raises:
        ValueError: It is of ids or labels that are out of range.
    """
    text = str(error)
    for words, message in _RULES:
        if found := words.search(text):
            node = _NODE.search(text)
            named = "a layer" if node is None else repr(node[1])
            raise ValueError(
                message.format(range=found[1], node=named)
            ) from None
