"""A search in reports, and as an event of dp_accounting."""

import math

import pytest

from keras_dp.errors import UnsupportedEventError
from keras_dp.interchange import to_dp_event
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PrivacyLedger,
    Round,
    Selection,
    TruncatedNegativeBinomial,
    UnverifiedSampling,
)
from keras_dp.reporting.report import make_report

RELEASE = Round(FullDataset(True), (GaussianSum("all", 1.0, 9.0),))
LAW = TruncatedNegativeBinomial(1, 5)


def report_of(*plans) -> str:
    ledger = PrivacyLedger.in_memory(dataset="doc")
    with ledger.start_run("search", purpose="training") as run:
        made = Selection(plans, LAW).round
        run.record(made.sampling, made.queries)
    return " ".join(str(make_report(ledger, delta=1e-5)).split())


def test_a_report_says_what_was_searched_and_what_stays_secret() -> None:
    text = report_of([(RELEASE, 3)])

    assert "the best of 5 trials on average (geometric), 3 rounds each" in text
    assert "Nobody may learn how many trials a search had" in text
    assert "certified by Fourier" in text
    assert "as declared" not in text


def test_a_report_warns_of_what_trials_do() -> None:
    cut = Round(UnverifiedSampling(), RELEASE.queries)
    bare = Round(FullDataset(True), (NonPrivateSum("debug"),))

    assert "was not verified" in report_of([(cut, 3)])
    assert "released a sum without noise" in report_of(
        [(RELEASE, 1), (bare, 1)]
    )


class TestEvents:
    """dp_accounting has an event for searches of one plan."""

    def test_are_of_the_trial(self) -> None:
        dp = pytest.importorskip("dp_accounting")
        made = Selection([[(RELEASE, 3)]], LAW).round

        event = to_dp_event([(made, 2)], units=3)

        assert event.count == 2
        assert event.event.mean == LAW.largest_mean
        assert event.event.shape == LAW.shape
        assert event.event.event == dp.SelfComposedDpEvent(
            dp.GaussianDpEvent(math.nextafter(3.0, 0)), 3
        )

    @pytest.mark.parametrize(
        ("plans", "law"),
        [
            ([[(RELEASE, 1)], [(RELEASE, 2)]], LAW),
            ([[(RELEASE, 1)]], TruncatedNegativeBinomial(-0.5, 5)),
        ],
    )
    def test_others_are_refused(self, plans, law) -> None:
        pytest.importorskip("dp_accounting")
        with pytest.raises(UnsupportedEventError, match="searches of one plan"):
            to_dp_event([(Selection(plans, law).round, 1)])
