"""The tiers of the tests, each of which holds the one before.

*Quick* (`make quick`) are the tests of files that do without TensorFlow, but
those marked `standard`. *Standard* (`make test`) leaves out those marked `full`
or `nightly`, *full* (`make test-full`) those marked `nightly`. *Nightly*, the
default, leaves nothing out.
"""

import gc
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.imports import ROOT, needs_tensorflow

# Threads of NumPy that share a core with another worker wait for each other: a
# product of small matrices takes a hundred times as long. Nothing has loaded
# NumPy before, and processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without it TensorFlow lacks kernels on some CPUs, and is slower there.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# How long an example takes is no reason to fail.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# What fails here fails everywhere; `make nightly` looks at other examples.
hypothesis.settings.register_profile("repeatable", _PATIENT, derandomize=True)
hypothesis.settings.register_profile("search", _PATIENT, print_blob=True)
hypothesis.settings.load_profile("repeatable")

TIERS = ("quick", "standard", "full", "nightly")
# The least and the most that the longest case of a test of a tier takes; twice
# what CONTRIBUTING says, for machines that are busy.
SECONDS = {
    "quick": (0.0, 2.0),
    "standard": (0.0, 4.0),
    "full": (0.1, 60.0),
    "nightly": (0.1, math.inf),
}
# They begin first: a worker that began one last would end alone.
LONGEST = (
    "tests/integration/test_tutorials.py",
    "tests/integration/test_distribution.py",
    "tests/integration/test_planted_faults.py",
    "tests/integration/test_auditing_check.py",
    "tests/oracle/test_gradients.py",
    "tests/oracle/test_keras_hub.py",
    "tests/oracle/test_rules_convolutions.py",
    "tests/statistical/test_noise_samplers.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=TIERS, default="nightly", help="Which tests to run."
    )
    parser.addoption(
        "--race-turns",
        type=int,
        default=20,
        help="How often each of the processes that race writes to the ledger.",
    )


def pytest_ignore_collect(
    collection_path: Path, config: pytest.Config
) -> bool | None:
    """Leaves out files by what they import, before they do."""
    if config.getoption("--tier") != "quick" or collection_path.suffix != ".py":
        return None
    # pytest asks a module for each of its names, which surfaces then import.
    is_surface = collection_path.name == "__init__.py"
    return is_surface or needs_tensorflow(collection_path) or None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    chosen = TIERS.index(config.getoption("--tier"))
    longer = TIERS[chosen + 1 :]
    left_out = [
        item for item in items if any(map(item.get_closest_marker, longer))
    ]
    config.hook.pytest_deselected(items=left_out)
    kept = [item for item in items if item not in set(left_out)]
    items[:] = sorted(kept, key=_is_short)


def _is_short(item: pytest.Item) -> bool:
    return item.path.relative_to(ROOT).as_posix() not in LONGEST


def tier_of(report: pytest.TestReport) -> str:
    """Returns the first tier that runs a test."""
    marked = [tier for tier in TIERS if tier in report.keywords]
    path = ROOT / report.nodeid.partition("::")[0]
    is_quick = not marked and "unit" in path.parts
    if is_quick and not needs_tensorflow(path):
        return "quick"
    return (*marked, "standard")[0]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Names the tests whose marker no longer fits the time they take."""
    # Tests that share what a fixture made take no time of their own.
    shared = {
        report.nodeid.partition("::")[0]
        for report in terminalreporter.getreports("")
        if report.when == "setup" and report.duration > 0.5
    }
    seconds: dict[tuple[str, str], float] = {}
    for report in terminalreporter.getreports("passed"):
        if report.when == "call":
            key = (report.nodeid.partition("[")[0], tier_of(report))
            seconds[key] = max(seconds.get(key, 0.0), report.duration)
    for (name, tier), longest in sorted(seconds.items()):
        least, most = SECONDS[tier]
        if name.partition("::")[0] in shared:
            least = 0.0
        if not least <= longest <= most:
            terminalreporter.write_line(
                f"{longest:.1f} s, {tier} tier: {name}"
                + (" is too long for it." if longest > most else " is short.")
            )


def pytest_collection_finish() -> None:
    """Spares the search for cycles all that was imported: it stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _graphs_that_stay_are_searched_once() -> Iterator[None]:
    """TensorFlow keeps gigabytes of them: a search takes many seconds."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _quick_tests_do_without_tensorflow(
    pytestconfig: pytest.Config,
) -> Iterator[None]:
    yield
    if pytestconfig.getoption("--tier") == "quick":
        assert "tensorflow" not in sys.modules, (
            "This test imported TensorFlow. Import it at the top of the file, "
            "so that `make quick` leaves the file out."
        )
