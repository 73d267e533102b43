"""Chooses between building the gradients of a kernel and ghost norms.

The sums are the same up to rounding, and so are the norms, unless terms cancel
(see `OuterProductRecords`). Which way is faster depends on the sizes of the
layer and of the batch. The rates were measured by `benchmarks/cost_model.py`,
which also prints how often the model picks the faster way.
"""

# The operations of batched matrix products, and the bytes of passes over
# memory, per second on a CPU. Only their ratio matters here, and accelerators
# have a similar one.
OPERATIONS_PER_SECOND = 1.2e11
BYTES_PER_SECOND = 1.0e10

# If one of the ways needs more bytes than this for a batch, the way with fewer
# bytes is taken: built gradients are kept until all norms are known.
LARGEST_BYTES = 2**24


def instantiates(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> bool:
    """Whether to build the gradients for their norms and their weighted sum.

    The factors of `OuterProductRecords` are `[batch, rows, shared, left]` and
    `[batch, rows, shared, right]`, and their numbers have `itemsize` bytes.
    """
    if shared == 1:
        return False  # The norm of one outer product is a product of norms.
    number = batch * rows * itemsize
    built = number * left * right
    # The Gram matrices, their product and the factors.
    ghost = number * shared * (3 * shared + left + right)
    if max(built, ghost) > LARGEST_BYTES:
        return built <= ghost
    sizes = (batch, rows, shared, left, right, itemsize)
    return instantiated_seconds(*sizes) <= ghost_seconds(*sizes)


def instantiated_seconds(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> float:
    """Returns the time to build the gradients, and to read them twice."""
    terms = batch * rows
    operations = 2 * terms * shared * left * right
    passes = 3 * terms * left * right * itemsize
    return operations / OPERATIONS_PER_SECOND + passes / BYTES_PER_SECOND


def ghost_seconds(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> float:
    """Returns the time of the Gram matrices, and of one contraction."""
    terms = batch * rows
    grams = 2 * terms * shared**2 * (left + right)
    contraction = 2 * terms * shared * left * right
    passes = 6 * terms * shared**2 * itemsize
    passes += 4 * terms * shared * (left + right) * itemsize
    operations = grams + contraction
    return operations / OPERATIONS_PER_SECOND + passes / BYTES_PER_SECOND
