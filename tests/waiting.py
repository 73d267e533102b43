"""How tests wait: for something to happen, however long it takes.

No test waits for a duration, or measures one: a machine that is busy would
decide whether it passes.
"""

import time
from collections.abc import Callable, Iterator

# Ends a test, or a process of one, that would never end.
HUNG_SECONDS = 1800.0


def until(holds: Callable[[], object]) -> Iterator[None]:
    """Yields again and again until something holds.

    Raises:
        TimeoutError: It never does.
    """
    end = time.monotonic() + HUNG_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("What the test waits for does not happen.")
        yield


def wait_until(holds: Callable[[], object]) -> None:
    """Returns once something holds."""
    for _ in until(holds):
        let_others_run()


def let_others_run() -> None:
    """Leaves the processor to others for a moment. No result rests on it."""
    time.sleep(0.01)
