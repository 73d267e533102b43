"""A private search: one row, the best trial, and nothing of the others."""

import math

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import budgets
from keras_dp.errors import (
    BudgetExceededError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.ledger import (
    GaussianSum,
    PrivacyLedger,
    TruncatedNegativeBinomial,
)
from keras_dp.spending import PrivacyTarget
from keras_dp.tuning import (
    Choice,
    LogUniform,
    PrivateScore,
    PrivateSearch,
    Uniform,
)
from keras_dp.tuning.private_search import _failed
from keras_dp.tuning.trials import Trials
from tests.private_models import private_of
from tests.unit.tuning.searches import build, data, public_accuracy, search_of


@pytest.fixture
def three_trials(monkeypatch, noise_is_given):
    """Makes each search have three trials, which look at nothing.

    Returns the list of the settings and noise that they got.
    """
    asked = []

    def run(self, settings, noise_multiplier):
        asked.append((settings, noise_multiplier))
        return build(settings), float(len(asked))

    monkeypatch.setattr(Trials, "run", run)
    monkeypatch.setattr(PrivateSearch, "_check_records", lambda self: None)
    monkeypatch.setattr(
        TruncatedNegativeBinomial, "trials", lambda self, uniform: 3
    )
    return asked


def private_score(noise_multiplier=20.0):
    return PrivateScore(
        data(seed=2),
        lambda y, outputs: ((outputs > 0) == (y > 0.5))[:, 0],
        noise_multiplier=noise_multiplier,
    )


class TestWhatIsReleased:
    def test_is_the_best_trial(self, three_trials) -> None:
        found = search_of().run(rehearsal=False)

        assert found.score == 3.0
        assert found.settings == three_trials[2][0]
        assert isinstance(found.model, keras.Sequential)

    def test_is_nothing_where_no_score_is_finite(
        self, three_trials, monkeypatch, capsys
    ) -> None:
        monkeypatch.setattr(
            Trials, "run", lambda self, *_: (build({}), math.nan)
        )

        assert search_of(verbose=True).run(rehearsal=False) is None
        assert "no trial had a finite score" in capsys.readouterr().out

    def test_an_error_is_raised_by_debug_in_a_row_that_says_so(
        self, three_trials, monkeypatch
    ) -> None:
        def fails(self, settings, noise_multiplier):
            raise ValueError("a record of a patient")

        monkeypatch.setattr(Trials, "run", fails)
        search = search_of(debug=True)

        with pytest.raises(ValueError, match="patient"):
            search.run(rehearsal=False)

        ((round_, _),) = search._ledger.rounds
        assert not round_.queries[0].is_private


class _Ended(BaseException):
    """An end that is no `Exception`, such as that of a process."""


class TestATrialThatFails:
    @pytest.mark.parametrize(
        "error", [ValueError, MemoryError, StopIteration, SystemExit, _Ended]
    )
    @pytest.mark.parametrize("failing", [1, 3])
    def test_ends_the_search_with_one_error(
        self, three_trials, monkeypatch, error, failing, ledger
    ) -> None:
        """Whichever trial it is, and whatever it raises."""
        asked = []

        def fails(self, settings, noise_multiplier):
            asked.append(settings)
            if len(asked) == failing:
                raise error("a record of a patient")
            return build(settings), 1.0

        monkeypatch.setattr(Trials, "run", fails)

        with pytest.raises(PrivateTrainingError) as raised:
            search_of(ledger=ledger).run(rehearsal=False)

        assert raised.value.args == _failed().args
        assert _is_alone(raised.value)
        assert [run.outcome for run in ledger.runs] == ["finished"]
        assert len(ledger) == 1

    def test_is_interrupted_without_a_word(
        self, three_trials, monkeypatch, ledger
    ) -> None:
        def interrupted(self, settings, noise_multiplier):
            raise KeyboardInterrupt("a record of a patient")

        monkeypatch.setattr(Trials, "run", interrupted)
        search = search_of(ledger=ledger)

        for _ in range(2):  # The second one is a second draw.
            with pytest.raises(KeyboardInterrupt) as raised:
                search.run(rehearsal=False)

            assert raised.value.args == ()
            assert _is_alone(raised.value)
        assert len(ledger) == 2


def _is_alone(error) -> bool:
    """Returns whether an error leads to no other one and into no trial."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return (
        error.__cause__ is None
        and error.__context__ is None
        and frames[1:] == ["run", "_secretly", "withheld"]
    )


def _with_a_label(label, count=200):
    """Returns records of three classes, the last of which has a label."""
    x, _ = data(count)
    y = np.arange(count) % 3
    y[-1] = label
    return x, y


def _classes(settings):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def _ids(settings):
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="int32"),
            keras.layers.Embedding(3, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", loss="mse")
    return model


@pytest.fixture
def one_trial(monkeypatch, noise_is_given):
    monkeypatch.setattr(
        TruncatedNegativeBinomial, "trials", lambda self, uniform: 1
    )


def _outcome(data, score=lambda model: 1.0, **changes):
    """Returns how a search ends, and how many rows it leaves."""
    ledger = PrivacyLedger.in_memory(dataset="doc")
    changes = {"build": _classes, **changes}
    search = search_of(score, data=data, ledger=ledger, **changes)
    try:
        found = search.run()
    except (PrivateTrainingError, ValueError) as error:
        return str(error), len(ledger)
    return "nothing" if found is None else "a model", len(ledger)


@pytest.mark.full
@pytest.mark.usefixtures("one_trial")
class TestARecordThatMakesTrialsFail:
    """It is found whether it is drawn or not, before anything is recorded."""

    def test_has_a_label_out_of_range(self) -> None:
        ((text, rows),) = {_outcome(_with_a_label(99)) for _ in range(3)}
        assert "`y` must hold integer labels in [0, 3)" in text
        assert "99" not in text
        assert rows == 0
        assert _outcome(_with_a_label(2)) == ("a model", 1)

    def test_ends_a_search_that_looked_at_no_record(self, monkeypatch) -> None:
        """The control: a sample of all records has it, and the row counts."""
        monkeypatch.setattr(PrivateSearch, "_check_records", lambda _: None)

        found = _outcome(_with_a_label(99), batch_size=200)

        assert found == (str(_failed()), 1)

    def test_has_an_id_out_of_range(self) -> None:
        x, y = np.arange(200)[:, None] % 3, data()[1]
        assert _outcome((x, y), build=_ids) == ("a model", 1)
        x[7] = 99

        text, rows = _outcome((x, y), build=_ids)

        assert "`x` must hold ids in [0, 3)" in text
        assert rows == 0

    def test_is_one_that_the_score_cannot_measure(self) -> None:
        def measure(y, outputs):
            if 99 in y:
                raise ValueError("a record of a patient")
            return y == 0

        good, bad = (
            PrivateScore(_with_a_label(label), measure, noise_multiplier=20.0)
            for label in (0, 99)
        )

        assert _outcome(_with_a_label(0), good) == ("a model", 1)
        assert _outcome(_with_a_label(0), bad) == (str(_failed()), 0)


class TestTheRow:
    def test_is_one_round_of_an_ended_run(self, three_trials, ledger) -> None:
        search = search_of(ledger=ledger, run="tuned")

        search.run(rehearsal=False)

        (run,) = ledger.runs
        assert (run.name, run.outcome, len(run)) == ("tuned", "finished", 1)
        assert run.rounds == ((search.round, 1),)
        assert run.plan == run.rounds

    def test_has_a_plan_for_each_size_and_length(self, three_trials) -> None:
        search = search_of(
            space={
                "batch_size": Choice([20, 50]),
                "epochs": Choice([1, 2]),
                "l2_norm_clip": LogUniform(0.1, 1.0),
            },
            batch_size=None,
            epochs=None,
        )

        assert [plan[0][1] for plan in search.selection.plans] == [10, 20, 4, 8]
        assert len(search.noise_multipliers) == 4

    def test_holds_the_private_score(self, three_trials) -> None:
        score = private_score(7.0)

        (plan,) = search_of(score).selection.plans

        assert plan[1] == (score.round, 1)
        assert score.round.queries == (GaussianSum("score", 1.0, 7.0),)


class TestATrial:
    def test_runs_no_round_beyond_its_plan(self) -> None:
        """A longer training than planned is refused before its first round."""
        trials = _trials()
        ledger = trials._ledger(trials.plan(50, 1, 1.0))
        model = build({})
        private = keras_dp.make_private(
            model,
            data(),
            target_epsilon=50.0,
            epochs=2,
            batch_size=50,
            ledger=PrivacyLedger.in_memory(dataset="other"),
            verbose=False,
        )
        samples, query = private.settings.samples, private.optimizer.query
        fresh = private_of(build({}), query, ledger)

        with pytest.raises(BudgetExceededError):
            fresh.fit(samples, verbose=0)

        assert len(ledger) == 0

    @pytest.mark.full
    def test_charges_training_and_score_to_its_own_ledger(
        self, monkeypatch, noise_is_given, ledger
    ) -> None:
        kept = []
        original = Trials._ledger

        def noted(self, plan):
            kept.append((plan, original(self, plan)))
            return kept[-1][1]

        monkeypatch.setattr(Trials, "_ledger", noted)

        model, score = search_of(private_score(), ledger=ledger)._trials.run(
            {"learning_rate": 1.0, "units": 2}, 1.0
        )

        ((plan, own),) = kept
        assert own.rounds == plan
        assert len(ledger) == 0
        assert math.isfinite(score)
        assert isinstance(model, keras.Model)


def _trials():
    return Trials(
        build,
        {50: keras_dp.PoissonBatches(data(), sampling_probability=0.25)},
        public_accuracy,
        "example",
        {"batch_size": 50, "epochs": 1},
        None,
        1e-3,
    )


@pytest.mark.full
def test_users_are_drawn_as_a_whole(noise_is_given) -> None:
    x, y = data()
    users = keras_dp.UserBatches(
        (x, y),
        user_ids=np.arange(200) // 2,
        records_per_user=2,
        sampling_probability=0.25,
    )
    search = search_of(
        data=users,
        batch_size=None,
        ledger=PrivacyLedger.in_memory(dataset="doc", unit="user"),
    )

    _, score = search._trials.run({"units": 2}, 1.0)

    assert 0 <= score <= 1
    ((planned, _),) = search.selection.plans[0]
    assert planned.sampling.draws_whole_units


class TestPrivateScores:
    def test_are_the_mean_and_noise(self, ledger) -> None:
        x, y = data(500, seed=3)
        model = build({})
        score = PrivateScore(
            (x, y), lambda y, outputs: y[:, 0], noise_multiplier=1e-9
        )

        assert score.release(model, ledger) == pytest.approx(y.mean(), abs=1e-9)
        assert ledger.rounds == ((score.round, 1),)

    def test_cut_values_to_the_bound(self, ledger) -> None:
        x, y = data(4, seed=3)
        values = np.array([7.0, -3.0, np.nan, np.inf])
        score = PrivateScore(
            (x, y), lambda y, outputs: values, noise_multiplier=1e-9
        )

        # 1, 0, 0 and 1.
        assert score.release(build({}), ledger) == pytest.approx(0.5, abs=1e-8)

    def test_refuse_one_value_for_all(self, ledger) -> None:
        score = PrivateScore(
            data(), lambda y, outputs: 0.5, noise_multiplier=1.0
        )

        with pytest.raises(ValueError, match="a value for each"):
            score.release(build({}), ledger)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"noise_multiplier": 0.0}, ValueError),
            ({"data": np.zeros([3, 2])}, TypeError),
            ({"measure": keras.metrics.Accuracy()}, TypeError),
        ],
    )
    def test_refuse_other_arguments(self, arguments, error) -> None:
        given = {
            "data": data(),
            "measure": keras.metrics.binary_accuracy,
            "noise_multiplier": 20.0,
        }

        with pytest.raises(error, match="must"):
            PrivateScore(**(given | arguments))


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"space": ["rate"]}, TypeError, "Bayesian"),
            ({"space": {"batch_size": Uniform(20, 50)}}, ValueError, "Choice"),
            ({"space": {"epochs": Choice([0, 1])}}, ValueError, "epochs"),
            ({"epochs": None}, ValueError, "`epochs` must"),
            ({"batch_size": 201}, ValueError, "at most 200"),
            ({"law": 20}, TypeError, "law"),
            ({"score": "accuracy"}, TypeError, "`score` must"),
            ({"build": None}, TypeError, "`build` must"),
            ({"target_epsilon": -1.0}, ValueError, "target_epsilon"),
            ({"delta": 0.01}, ValueError, "`delta` must be less than 1/N"),
            ({"debug": 1}, TypeError, "debug"),
            (
                {
                    "score": private_score(),
                    "data": keras_dp.Records(
                        data(), unit_ids=np.arange(200), rows_per_unit=1
                    ),
                },
                ValueError,
                "capped_rows",
            ),
        ],
    )
    def test_is_refused_before_anything_is_recorded(
        self, changes, error, words, noise_is_given, ledger
    ) -> None:
        with pytest.raises(error, match=words):
            search_of(**{"ledger": ledger, **changes})

        assert len(ledger) == 0

    def test_a_private_model_is_refused(self, noise_is_given) -> None:
        """It would have a ledger of its own, or a row for each trial."""

        def private(settings):
            return keras_dp.make_private(
                build(settings),
                data(),
                target_epsilon=1.0,
                epochs=1,
                ledger=PrivacyLedger.in_memory(dataset="other"),
                verbose=False,
            )

        with pytest.raises(TypeError, match="without privacy"):
            search_of(build=private)

    def test_a_layer_mixing_examples_is_refused(self, noise_is_given) -> None:
        def mixing(settings):
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.BatchNormalization()]
            )
            model.compile("sgd", loss="mse")
            return model

        with pytest.raises(UnsupportedLayerError):
            search_of(build=mixing)

    @pytest.mark.parametrize("shared", ["model", "layer", "optimizer"])
    def test_what_goes_on_from_trial_to_trial_is_refused(
        self, shared, noise_is_given, ledger
    ) -> None:
        model, layer = build({}), keras.layers.Dense(1)
        optimizer = keras.optimizers.SGD()

        def again(settings):
            if shared == "model":
                return model
            last = layer if shared == "layer" else keras.layers.Dense(1)
            made = keras.Sequential([keras.Input((4,)), last])
            made.compile(
                optimizer if shared == "optimizer" else "sgd", loss="mse"
            )
            return made

        with pytest.raises(ValueError, match="`build` must make a new model"):
            search_of(build=again, ledger=ledger)

        assert len(ledger) == 0

    @pytest.mark.full
    def test_mistakes_show_on_fake_data(self, noise_is_given, ledger) -> None:
        """It has nothing to do with the data, and costs nothing."""

        def misses(model):
            raise KeyError("no such metric")

        with pytest.raises(KeyError, match="no such metric"):
            search_of(misses, ledger=ledger).run()

        assert len(ledger) == 0


@pytest.fixture
def nothing_trains(monkeypatch):
    """Makes trials return a model at once, and noise a multiplier of 2."""
    monkeypatch.setattr(PrivateSearch, "_check_records", lambda self: None)
    monkeypatch.setattr(
        Trials, "run", lambda self, settings, noise: (build(settings), 1.0)
    )
    monkeypatch.setattr(
        PrivateSearch,
        "_calibrated",
        lambda self, kinds, held: dict.fromkeys(kinds, 2.0),
    )


class TestThePrice:
    @pytest.mark.full
    def test_meets_the_target_with_the_search_included(self) -> None:
        cost = search_of(target_epsilon=2.0).cost

        assert 1.999 < cost.search <= 2.0
        assert cost.one_trial < cost.search < cost.composed

    @pytest.mark.full
    def test_counts_what_the_ledger_holds(self, nothing_trains, ledger) -> None:
        """A second search finds the room that the first one left."""
        search = search_of(ledger=ledger)
        search.target = PrivacyTarget(1.2 * search.cost.search, 1e-3)

        assert search.run(rehearsal=False) is not None
        with pytest.raises(BudgetExceededError, match="`target_epsilon` must"):
            search.run(rehearsal=False)

        assert len(ledger) == 1

    @pytest.mark.full
    def test_an_account_pays_for_the_planned_search_and_no_other(
        self, nothing_trains, no_target, ledger
    ) -> None:
        search = search_of(ledger=ledger)
        budgets.open_account(
            ledger, "all", budgets.FixedPlan([(search.round, 1)], 9.0, 1e-3)
        )

        search.run(rehearsal=False)
        with pytest.raises(BudgetExceededError):
            search.run(rehearsal=False)

        assert len(ledger) == 1

    @pytest.mark.full
    def test_is_for_all_rows_of_a_unit(self, nothing_trains) -> None:
        def epsilon(rows):
            ledger = PrivacyLedger.in_memory(
                dataset="doc", unit="patient", rows_per_unit=rows
            )
            search = search_of(ledger=ledger)
            return search._epsilon([(search.round, 1)])

        assert epsilon(2) > 1.3 * epsilon(1)
