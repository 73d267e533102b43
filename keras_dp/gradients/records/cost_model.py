"""Whether to build the per-example gradients of a kernel, or only their norms.

Both ways have the same answers up to rounding; which is faster depends on the
layer alone. The rates were measured by `benchmarks/cost_model.py`, which also
prints how often the model picks the faster way.
"""

# Floating-point operations of batched matrix products and bytes of passes over
# memory, per second, on a CPU. Only their ratio matters here, and accelerators
# have a similar one.
OPERATIONS_PER_SECOND = 1.2e11
BYTES_PER_SECOND = 1.0e10

# Above so much, all examples together, the way with less memory is taken: built
# gradients are kept until the norms of all variables are known.
LARGEST_BYTES = 2**24


def instantiates(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> bool:
    """Whether building the gradients is the better way to their norms and sum.

    Args:
        batch: Number of examples.
        rows: See `OuterProductRecords`, for this and the following.
        shared: Terms of each example.
        left: Width of the left factor.
        right: Width of the right factor.
        itemsize: Bytes of a number.
    """
    if shared == 1:
        return False  # The norm of one outer product is a product of norms.
    sizes = (batch, rows, shared, left, right, itemsize)
    built, ghost = instantiated_bytes(*sizes), ghost_bytes(*sizes)
    if max(built, ghost) > LARGEST_BYTES:
        return built <= ghost
    return instantiated_seconds(*sizes) <= ghost_seconds(*sizes)


def instantiated_bytes(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> int:
    """The gradients of all examples."""
    del shared
    return batch * rows * left * right * itemsize


def ghost_bytes(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> int:
    """Two Gram matrices of each example, their product, and the factors."""
    terms = batch * rows * shared
    return terms * (3 * shared + left + right) * itemsize


def instantiated_seconds(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> float:
    """One product, written, read for the norms, and read for the sum."""
    terms = batch * rows
    operations = 2 * terms * shared * left * right
    passes = 3 * terms * left * right * itemsize
    return operations / OPERATIONS_PER_SECOND + passes / BYTES_PER_SECOND


def ghost_seconds(
    batch: int, rows: int, shared: int, left: int, right: int, itemsize: int
) -> float:
    """Two Gram matrices, their product, and the contraction for the sum."""
    terms = batch * rows
    grams = 2 * terms * shared**2 * (left + right)
    contraction = 2 * terms * shared * left * right
    passes = 6 * terms * shared**2 * itemsize
    passes += 4 * terms * shared * (left + right) * itemsize
    operations = grams + contraction
    return operations / OPERATIONS_PER_SECOND + passes / BYTES_PER_SECOND
