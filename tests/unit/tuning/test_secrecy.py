"""Nothing that a search leaves tells how many trials it ran."""

import contextlib
import gc
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from keras_dp.keras_internals import name_counts
from keras_dp.ledger import PrivacyLedger, TruncatedNegativeBinomial
from keras_dp.training.data.prefetch import Prefetched
from keras_dp.tuning.best_of import like_the_first, silenced
from tests.unit.tuning.searches import build, search_of

NAMES = {"dense": 3}


def _next_numbers():
    """Returns what the generators of the process give next."""
    return (
        random.random(),
        np.random.random(),  # noqa: NPY002 - it is what a search must not move.
        float(tf.random.uniform([])),  # noqa: TID251 - the same.
        float(keras.random.uniform([])),
    )


class _Lines(logging.Handler):
    """Keeps what is logged, as a file of the user's would."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def _noisy_build(settings):
    """Prints and warns in every way, as users' code does."""
    sys.stdout.write("building\n")
    sys.stderr.write("building\n")
    os.write(1, b"building\n")
    os.write(2, b"building\n")
    logging.getLogger("of.the.user").error("building")
    absl_logging.error("building")
    warnings.warn("building", UserWarning, stacklevel=1)
    random.random()
    return build(settings)


class _Held:
    """What a trial leaves behind: something that refers to itself."""

    def __init__(self):
        self.itself = self


def _alive():
    kinds = (keras.Model, PrivacyLedger, _Held, Prefetched)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


def _noisy_score(model):
    model.held = _Held()
    sys.stdout.write("score\n")
    absl_logging.error("score")
    return float(model.layers[-1].bias.numpy()[0])


@pytest.fixture
def traces(monkeypatch, tmp_path, capfd, noise_is_given):
    """Returns a function from a number of trials to all that a search leaves.

    The law is made to draw this number.
    """
    root = logging.getLogger()
    handler = _Lines()
    root.addHandler(handler)
    monkeypatch.setattr(warnings, "filters", warnings.filters[:])
    warnings.simplefilter("ignore")

    def left_by(trials, name):
        monkeypatch.setattr(
            TruncatedNegativeBinomial, "trials", lambda self, uniform: trials
        )
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        capfd.readouterr()
        handler.lines.clear()
        gc.collect()
        others = {id(each) for each in _alive()}
        ledger = PrivacyLedger.open(folder / "a.ledger", dataset="doc")
        search = search_of(
            _noisy_score,
            build=_noisy_build,
            ledger=ledger,
            verbose=True,
        )
        tf.random.uniform([])  # noqa: TID251 - the generator moves on.
        found = search.run()
        left = [each for each in _alive() if id(each) not in others]
        for thread in threading.enumerate():
            if thread.name == "keras_dp input":
                thread.join()  # It was told to end.
        assert found.model in left
        out, error = capfd.readouterr()
        lines = [
            line.replace(str(folder), "FOLDER")
            for line in out.splitlines()
            if "has the score" not in line
        ]
        rows = [
            (run.name, run.state, run.plan, run.rounds) for run in ledger.runs
        ]
        ledger.close()
        return {
            "shown": lines,
            "errors": error,
            "logged": list(handler.lines),
            "rows": rows,
            "alive": sorted(type(each).__name__ for each in left),
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/dev/fd")),
            "files": sorted(each.name for each in folder.rglob("*")),
            "names": name_counts(),
            "layers": [layer.name for layer in found.model.layers],
            "model": found.model.name,
            "next": _next_numbers(),
            "settings": list(found.settings),
        }

    yield left_by
    root.removeHandler(handler)


@pytest.mark.full
def test_one_trial_and_three_leave_the_same(traces) -> None:
    assert traces(1, "one") == traces(3, "three")


@pytest.mark.nightly
def test_they_differ_where_trials_are_not_silenced(traces, monkeypatch) -> None:
    """The control: the same comparison finds what is printed and logged."""
    monkeypatch.setattr(
        "keras_dp.tuning.private_search.silenced", contextlib.nullcontext
    )

    one, three = traces(1, "one"), traces(3, "three")

    assert len(one["shown"]) < len(three["shown"])
    # TensorFlow has lines of its own, once in a process.
    assert one["errors"].count("building") < three["errors"].count("building")
    assert len(one["logged"]) < len(three["logged"])


@pytest.mark.nightly
def test_they_differ_where_nobody_frees_trials(traces, monkeypatch) -> None:
    """The control: Python has not looked for them when the search ends."""
    monkeypatch.setattr(
        "keras_dp.tuning.best_of.gc",
        types.SimpleNamespace(collect=lambda: None),
    )
    monkeypatch.setattr(threading.Thread, "join", lambda self: None)
    gc.disable()
    try:
        one, three = (traces(n, str(n))["alive"] for n in (1, 3))
    finally:
        gc.enable()

    assert len(one) < len(three)


def test_the_last_row_is_written_before_the_first_trial(
    monkeypatch, tmp_path, noise_is_given
) -> None:
    """A later time of day would tell how long the trials took."""
    ledger = PrivacyLedger.open(tmp_path / "a.ledger", dataset="doc")
    heads = []

    def trial(self, settings, noise):
        heads.append((len(ledger), ledger.runs[-1].outcome, ledger.verify()))
        return build(settings), 0.0

    monkeypatch.setattr("keras_dp.tuning.trials.Trials.run", trial)
    search_of(ledger=ledger).run(rehearsal=False)

    assert set(heads) == {(1, "finished", ledger.verify())}


def test_what_python_and_libraries_in_c_print_is_dropped(capfd) -> None:
    with silenced():
        sys.stdout.write("one\n")
        sys.stderr.write("two\n")
        os.write(1, b"three")
        os.write(2, b"four")
        absl_logging.error("five")
        logging.getLogger("other").critical("six")
        warnings.warn("seven", UserWarning, stacklevel=1)
    sys.stdout.write("then\n")

    assert capfd.readouterr() == ("then\n", "")


def test_an_error_leaves_the_process_as_it_was(capfd) -> None:
    with pytest.raises(KeyError), silenced():
        raise KeyError("x")
    sys.stdout.write("then\n")

    assert capfd.readouterr().out == "then\n"
    assert not logging.root.manager.disable


@pytest.mark.full
def test_a_process_without_a_screen_can_be_silenced() -> None:
    """Its standard streams are closed, as those of a service may be."""
    script = textwrap.dedent(
        """
        import os, sys
        from keras_dp.tuning.best_of import silenced
        os.close(1); os.close(2); sys.stdout = sys.stderr = None
        with silenced():
            pass
        os._exit(7)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True
    )

    assert ended.returncode == 7


def test_a_trial_is_named_like_the_first_one() -> None:
    before = name_counts()
    for _ in range(2):
        with like_the_first(NAMES):
            assert keras.layers.Dense(1).name == "dense_3"

    assert name_counts() == before


def test_a_seed_that_was_chosen_has_no_effect_on_trials() -> None:
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        with like_the_first({}):
            drawn.append(_next_numbers())

    assert all(a != b for a, b in zip(*drawn, strict=True))


def test_generators_do_not_tell_how_often_they_were_asked() -> None:
    def after(trials):
        keras.utils.set_random_seed(3)
        for _ in range(trials):
            with like_the_first({}):
                keras.random.uniform([])
                random.random()
        return _next_numbers()

    assert after(1) == after(4)


def test_warnings_of_many_traces_do_not_tell_how_many_trials_ran() -> None:
    lines = _Lines()
    tf.get_logger().addHandler(lines)

    def after(trials):
        def traced(x):
            return x

        # Equal codes share one count.
        traced.__code__ = traced.__code__.replace(co_name=f"traced_{trials}")
        for _ in range(trials):
            with like_the_first({}), silenced():
                tf.function(traced)(tf.zeros([]))
        lines.lines.clear()
        for _ in range(5):
            tf.function(traced)(tf.zeros([]))
        return len(lines.lines)

    try:
        assert after(1) == after(3) == after(9) == 1
    finally:
        tf.get_logger().removeHandler(lines)


def test_a_handler_that_is_made_inside_works_afterwards(capsys) -> None:
    logger = logging.getLogger("made.inside")
    logger.propagate = False
    with silenced():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        logger.warning("dropped")
        sys.stderr.write("dropped\n")

    logger.warning("shown")

    assert capsys.readouterr() == ("", "shown\n")
