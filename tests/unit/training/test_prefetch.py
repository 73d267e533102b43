"""`Prefetched` yields what the iterator yields, and its thread ends."""

import gc
import threading

import pytest

from keras_dp.training.data.prefetch import Prefetched
from tests.waiting import HUNG_SECONDS, wait_until

NAME = "keras_dp input"


def threads():
    return [each for each in threading.enumerate() if each.name == NAME]


def end_of(thread):
    thread.join(HUNG_SECONDS)
    return not thread.is_alive()


def started(iterator, ahead=2):
    """Returns a prefetched iterator and its thread."""
    before = set(threads())
    prefetched = Prefetched(iterator, ahead=ahead)
    (thread,) = set(threads()) - before or {None}
    return prefetched, thread


class Endless:
    """Counts what was asked of it."""

    def __init__(self):
        self.made = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.made += 1
        return self.made


def waits_after(prefetched, counter, count):
    """Waits until so many items were made; returns whether no more will be.

    Each item takes an order, and there is none left.
    """
    wait_until(lambda: counter.made >= count)
    return counter.made == count and prefetched._orders.empty()


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_items_and_their_order_are_those_of_the_iterator(ahead):
    assert list(Prefetched(iter(range(1000)), ahead=ahead)) == [*range(1000)]


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_is_made_ahead_than_asked_for(ahead):
    counter = Endless()
    prefetched = Prefetched(counter, ahead=ahead)

    assert waits_after(prefetched, counter, ahead)
    assert next(prefetched) == 1
    assert waits_after(prefetched, counter, ahead + 1)


def test_items_are_made_in_another_thread():
    makers = (threading.get_ident() for _ in range(3))

    assert threading.get_ident() not in list(Prefetched(makers, ahead=1))


class FaultError(Exception):
    pass


def test_an_exception_surfaces_after_the_items_before_it_and_stays():
    def items():
        yield from (1, 2, 3)
        raise FaultError("here")

    prefetched = Prefetched(items(), ahead=2)

    assert [next(prefetched) for _ in range(3)] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(FaultError, match="here"):
            next(prefetched)


def test_what_ends_stays_at_its_end():
    prefetched = Prefetched(iter([1]), ahead=2)

    assert list(prefetched) == [1]
    assert list(prefetched) == []


def test_the_thread_ends_with_the_last_reference():
    prefetched, thread = started(Endless())
    next(prefetched)
    assert thread.is_alive()

    del prefetched
    gc.collect()

    assert end_of(thread)


def test_a_reference_keeps_the_thread_alive():
    """Control: the thread above did not end by itself."""
    prefetched, thread = started(Endless())
    next(prefetched)

    gc.collect()

    assert thread.is_alive()
    prefetched.close()
    assert not thread.is_alive()


def test_closing_ends_the_thread_at_once_and_the_iteration():
    counter = Endless()
    prefetched, thread = started(counter, ahead=3)
    assert waits_after(prefetched, counter, 3)

    prefetched.close()
    prefetched.close()

    assert not thread.is_alive()
    assert counter.made == 3
    assert list(prefetched) == []


def test_the_thread_ends_with_the_iterator_and_with_an_exception():
    def failing():
        yield 1
        raise FaultError

    for items in (iter([1, 2]), failing()):
        prefetched, thread = started(items, ahead=5)
        assert thread is None or end_of(thread)
        assert next(prefetched) == 1


def test_the_thread_does_not_keep_the_iterator_of_a_closed_one():
    class Held(Endless):
        pass

    prefetched, thread = started(Held())
    prefetched.close()
    del prefetched, thread
    gc.collect()

    assert not [each for each in gc.get_objects() if type(each) is Held]


def test_ahead_must_be_positive():
    with pytest.raises(ValueError, match="`ahead` must"):
        Prefetched(iter([]), ahead=0)
