"""Runs blocks of code in turn, in the environment that they were written for.

It reads a list of them as JSON, and answers with a line of JSON for each.
"""

import contextlib
import io
import json
import sys
import time
import traceback


def main() -> None:
    """Runs each block, those after one that failed as well."""
    names = {"__name__": "__main__"}
    for number, block in enumerate(json.load(sys.stdin), 1):
        output, error = io.StringIO(), ""
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(output):
                exec(compile(block, f"block {number}", "exec"), names)
        except Exception:  # noqa: BLE001 - Whatever it is, it is reported.
            error = traceback.format_exc()
        answer = {
            "seconds": time.perf_counter() - start,
            "output": output.getvalue(),
            "error": error,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
