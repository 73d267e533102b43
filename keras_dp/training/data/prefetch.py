"""An iterator whose items are made in advance, by another thread."""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

from keras_dp import _check
from keras_dp._override import override

T = TypeVar("T")


class Prefetched(Iterator[T], Generic[T]):
    """Yields the items of an iterator, some of which are made in advance.

    Guarantee: the items and their order are those of the iterator. An exception
    of the iterator is raised in place of the item that it prevented, and again
    on every later call. At most `ahead` items wait, while one more is made.
    When this object ends, is closed, or is no longer referenced, the thread
    finishes its item and ends; `close` waits for that. It never keeps a process
    alive.
    """

    def __init__(self, iterator: Iterator[T], *, ahead: int) -> None:
        """Starts the thread. Nothing else may use the iterator from now on."""
        _check.integer_at_least(1, ahead=ahead)
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._end: BaseException | None = None
        closed = threading.Event()
        for _ in range(ahead):
            self._orders.put(True)
        # The thread must not hold `self`, or nobody would ever end it.
        self.thread = threading.Thread(
            target=_produce,
            args=(iterator, self._items, self._orders, closed),
            name="keras_dp input",
            daemon=True,
        )
        self._close = weakref.finalize(self, _close, self._orders, closed)
        self.thread.start()

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> T:
        if self._end is None:
            item, end = self._items.get()
            if end is None:
                self._orders.put(True)
                result: T = item
                return result
            self._end = end
        raise self._end

    def close(self) -> None:
        """Ends the thread, once it has made its item; what is left is lost."""
        self._close()
        self._end = self._end or StopIteration()
        self.thread.join()


def _produce(
    iterator: Iterator[Any],
    items: "queue.SimpleQueue[Any]",
    orders: "queue.SimpleQueue[bool]",
    closed: threading.Event,
) -> None:
    try:
        while orders.get() and not closed.is_set():
            items.put((next(iterator), None))
    except BaseException as error:  # noqa: BLE001 - raised by `__next__`.
        items.put((None, error))


def _close(orders: "queue.SimpleQueue[bool]", closed: threading.Event) -> None:
    """May run inside the garbage collector: it never waits."""
    closed.set()
    orders.put(False)
