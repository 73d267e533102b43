"""The command line `keras-dp`: each command makes a document, which it prints.

Exit codes:

- 0: done. A reader that closes the pipe early has what it wanted: 0, too.
- 1: the answer could not be written.
- 2: wrong usage, a question without an answer, or an extra that is missing.
- 3: the file is not a ledger that can be read or written: it is missing,
  foreign, corrupt or newer.
- 4: the rows contradict each other, or it is not the ledger that was meant.

Messages about failures go to the standard error stream, as one line.
"""

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence

from keras_dp import _check
from keras_dp.errors import (
    CalibrationError,
    LedgerError,
    LedgerIntegrityError,
    OutputError,
    UnsupportedEventError,
)
from keras_dp.reporting.arguments import parser_of
from keras_dp.reporting.commands import COMMANDS
from keras_dp.reporting.document import render
from keras_dp.reporting.wording import on_one_line

OK, UNWRITTEN, USAGE, UNREADABLE, INCONSISTENT = range(5)

_LONGEST_MESSAGE = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, with the arguments of this process by default."""
    options = parser_of(COMMANDS).parse_args(arguments)
    with _without_collection():
        return _answered(options)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Suspends garbage collection, which is slow with 10^5 rounds.

    Rounds refer to each other in no cycles, so that it would find nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _answered(options: argparse.Namespace) -> int:
    try:
        document = COMMANDS[options.command].answer(options)
    except LedgerIntegrityError as error:
        return _fail(INCONSISTENT, error)
    except FileNotFoundError as error:
        return _fail(
            UNREADABLE, f"There is no file {error.filename!r}. Check its name."
        )
    except (LedgerError, OSError) as error:
        return _fail(UNREADABLE, error)
    except (
        CalibrationError,
        ImportError,
        UnsupportedEventError,
        ValueError,
    ) as error:
        return _fail(USAGE, error)
    except OutputError as error:
        return _fail(UNWRITTEN, error)
    return _print(render(document, options.format))


def _print(text: str) -> int:
    if sys.stdout is None:  # As after `>&-` in a shell.
        return _fail(UNWRITTEN, "standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    encoded = f"{text}\n".encode(encoding, "backslashreplace")
    try:
        sys.stdout.write(encoded.decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it exits, and must not fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OK
        return _fail(UNWRITTEN, error)
    return OK


def _fail(code: int, error: Exception | str) -> int:
    # SQLite's may have several lines; a file may have put anything into it.
    message = on_one_line(" ".join(str(error).split()))
    message = _check.shortened(message, _LONGEST_MESSAGE)
    with contextlib.suppress(OSError):
        if sys.stderr is not None:  # As after `2>&-` in a shell.
            sys.stderr.write(f"keras-dp: {message}\n")
            sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
