"""The first rounds say how long a training will take."""

import pytest

from keras_dp.training.callbacks import fit_callbacks


def said(
    monkeypatch, capsys, *, each=0.5, at_once=1, epochs=40, steps=20, verbose=1
):
    """Returns what is printed while the first epochs run, on a clock of ours.

    The first call takes a minute more: it is compiled.
    """
    clock = [0.0]
    monkeypatch.setattr(fit_callbacks.time, "perf_counter", lambda: clock[0])
    callback = fit_callbacks.TimeAhead()
    callback.set_params({"verbose": verbose, "epochs": epochs, "steps": steps})
    clock[0] += 60
    for epoch in range(min(epochs, 5)):
        callback.on_epoch_begin(epoch)
        for last in range(at_once - 1, steps or 20, at_once):
            clock[0] += each * at_once
            callback.on_train_batch_end(last)
    return capsys.readouterr().out


@pytest.mark.parametrize("at_once", [1, 4, 20])
def test_the_time_is_that_of_the_rounds_that_are_left(
    at_once, monkeypatch, capsys
) -> None:
    """An epoch of one call is timed by the next one."""
    text = said(monkeypatch, capsys, at_once=at_once)

    assert text.count("epochs take about") == 1
    assert "The 40 epochs take about 7 min, 10 s each" in text


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 1, "each": 0.1}, {"steps": None}, {"verbose": 0}],
    ids=["short", "endless", "silent"],
)
def test_nothing_is_said_where_nobody_waits(
    changes, monkeypatch, capsys
) -> None:
    assert said(monkeypatch, capsys, **changes) == ""
