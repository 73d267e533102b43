"""Each training stands in the ledger as a run, with its plan and its end."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp import budgets
from keras_dp.errors import BudgetExceededError, LedgerError
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.ledger.places import connections, storage
from keras_dp.ledger.places.place import FileHandle
from keras_dp.spending import RunLimits
from tests.private_models import adaptive_average, private_of

DELTA = 1e-4


@pytest.fixture
def ledger() -> PrivacyLedger:
    return PrivacyLedger.in_memory(dataset="d")


def linear(*hidden):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((3,)), *hidden, keras.layers.Dense(1)], name="linear"
    )


def average(noise=2.0):
    return keras_dp.GaussianAverageQuery(1.0, noise, denominator=16)


def private_model(ledger, *hidden, checks=0):
    return private_of(linear(*hidden), average(), ledger, checks=checks)


def batches() -> keras_dp.PoissonBatches:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    return keras_dp.PoissonBatches(
        (x, x.sum(axis=1)), sampling_probability=0.25
    )


def fit(private, epochs=2, **options):
    return private.fit(batches(), epochs=epochs, verbose=0, **options)


class StopsAfter(keras.callbacks.Callback):
    """Does something once, after some rounds."""

    def __init__(self, rounds: int, act) -> None:
        super().__init__()
        self.rounds, self.act = rounds, act

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.rounds -= 1
        if not self.rounds:
            self.act(self.model)


def stop(model) -> None:
    model.stop_training = True


def fail(model) -> None:
    raise ValueError("on purpose")


def interrupt(model) -> None:
    raise KeyboardInterrupt


def test_a_fit_is_a_run_with_a_plan(ledger) -> None:
    fit(private_model(ledger))

    (run,) = ledger.runs
    assert (run.name, run.state, run.outcome) == (
        "linear",
        "finished",
        "finished",
    )
    assert sum(count for _, count in run.plan) == len(run) == 8
    assert len(run.start.model) == 64
    assert "keras" in dict(run.start.author.versions)
    found = budgets.guarantee(ledger, delta=DELTA)
    assert (found.basis, found.ex_post) == ("plan", None)


def test_each_fit_is_one(ledger) -> None:
    private = private_model(ledger)
    for name in ("first", "second"):
        fit(private, run=name)

    assert [(run.name, len(run)) for run in ledger.runs] == [
        ("first", 8),
        ("second", 8),
    ]


def test_details_are_written(ledger) -> None:
    details = keras_dp.RunDetails(
        "rate 0.1", purpose="trial", description="the first of three"
    )
    fit(private_model(ledger, checks=2), run=details)

    start = ledger.runs[0].start
    assert (start.name, start.purpose) == ("rate 0.1", "trial")
    assert start.description == (
        "the first of three; examples kept apart: proven"
    )


class OnRareInputs(keras.layers.Layer):
    """Adds the mean over the batch where an input is above 20."""

    def call(self, inputs):
        mean = keras.ops.mean(inputs, axis=0, keepdims=True)
        gate = keras.ops.sigmoid(1000 * (keras.ops.max(inputs) - 20))
        return inputs + gate * mean


def test_a_model_that_is_only_tested_is_told_from_one_that_is_proven(
    ledger, caplog
) -> None:
    """By a warning, once; by the ledger; and by the summary."""
    private = private_model(ledger, checks=2)
    tested = private_model(ledger, OnRareInputs(name="rare"), checks=2)
    lines: list[list[str]] = []
    warnings = []
    for each in (private, tested):
        caplog.clear()
        fit(each, epochs=1)
        fit(each, epochs=1)
        lines.append([])
        each.summary(print_fn=lines[-1].append)
        warnings.append([x for x in caplog.messages if "kept apart" in x])

    assert [run.start.description for run in ledger.runs] == [
        *["examples kept apart: proven"] * 2,
        *["examples kept apart: tested"] * 2,
    ]
    assert "proven for all inputs" in lines[0][-2]
    assert "not proven" in lines[1][-2]
    assert [len(each) for each in warnings] == [0, 1]
    assert "Max ('" in warnings[1][0] or "Mean ('" in warnings[1][0]
    assert "rare'" in warnings[1][0]


@pytest.mark.parametrize(
    ("act", "error", "outcome"),
    [
        (stop, None, "stopped"),
        (fail, ValueError, "failed"),
        (interrupt, KeyboardInterrupt, "stopped"),
    ],
)
def test_a_fit_that_ends_early_costs_its_plan(
    ledger, act, error, outcome
) -> None:
    private = private_model(ledger)
    callback = StopsAfter(3, act)
    if error is None:
        fit(private, callbacks=[callback])
    else:
        with pytest.raises(error):
            fit(private, callbacks=[callback])

    (run,) = ledger.runs
    assert run.outcome == outcome
    assert sum(count for _, count in run.plan) == 8
    assert len(run) == 3
    found = budgets.guarantee(ledger, delta=DELTA)
    assert found.basis == "plan"
    assert found.ex_post.epsilon < found.claim.epsilon


def test_a_target_shortens_the_plan(ledger) -> None:
    query = private_model(ledger)
    with pytest.raises(BudgetExceededError):
        fit(query, target_epsilon=1e-3)
    assert ledger.runs == ()

    fit(query, epochs=1000, target_epsilon=4.0, delta=DELTA)
    (run,) = ledger.runs
    assert run.outcome == "budget"
    assert sum(count for _, count in run.plan) == len(run) < 4000
    found = budgets.guarantee(ledger, delta=DELTA)
    assert (found.basis, found.ex_post) == ("plan", None)
    assert found.claim.epsilon <= 4.0


def test_batches_are_one_run_until_the_model_is_gone(ledger) -> None:
    private = private_model(ledger)
    for _ in range(5):
        private.train_on_batch(np.ones((4, 3)), np.ones(4), run="by hand")

    assert [(run.name, len(run), run.state) for run in ledger.runs] == [
        ("by hand", 5, "running")
    ]
    del private
    gc.collect()
    assert ledger.runs[0].outcome == "finished"
    assert budgets.guarantee(ledger, delta=DELTA).basis == "as if fixed"


def test_another_ledger_begins_another_run_of_batches(ledger) -> None:
    other = PrivacyLedger.in_memory(dataset="d")
    private = private_model(ledger)
    for each in (ledger, ledger, other):
        private.optimizer.ledger = each
        private.train_on_batch(np.ones((4, 3)), np.ones(4))

    assert (len(ledger), len(other)) == (2, 1)
    assert [run.outcome for run in ledger.runs] == ["finished"]


def test_own_loops_are_runs(ledger) -> None:
    gradients = own_loop(ledger)
    for _ in gradients.over(batches(), rounds=3, run="three"):
        pass
    for _ in gradients.over(batches(), rounds=3, run="left"):
        break

    assert [(run.name, len(run), run.outcome) for run in ledger.runs] == [
        ("three", 3, "finished"),
        ("left", 1, "stopped"),
    ]


def own_loop(ledger):
    return keras_dp.PrivateGradients(
        linear(), "mse", query=average(), ledger=ledger
    )


def adapting_model(ledger):
    """Each of its rounds is another, and a block of its own."""
    return private_of(linear(), adaptive_average(2.0, 16), ledger)


def test_a_clip_that_adapts_keeps_to_its_plan(ledger) -> None:
    fit(adapting_model(ledger))

    assert len({round_ for round_, _ in ledger.rounds}) > 2
    found = budgets.guarantee(ledger, delta=DELTA)
    assert (found.basis, found.ex_post) == ("plan", None)


class TestAccounts:
    def planned(self, ledger) -> Round:
        other = PrivacyLedger.in_memory(dataset="d")
        fit(private_model(other), epochs=1)
        return other.rounds[0].round

    def test_the_only_one_pays_and_ends_fit(self, ledger, caplog) -> None:
        budget = budgets.RenyiFilter(3.0, DELTA)
        budgets.open_account(ledger, "all", budget)
        private = private_model(ledger)
        fit(private, epochs=1000)

        (run,) = ledger.runs
        assert run.start.account == "all"
        assert 0 < len(run) < 4000
        assert (
            ledger.accounts[0].balance.room(
                budgets.charge_of(ledger.accounts[0], self.planned(ledger)), 9
            )
        ) == 0
        budgets.verify_prices(ledger)
        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == "account"
        assert found.claim.epsilon == pytest.approx(3.0)
        weights = private.get_weights()
        with pytest.raises(BudgetExceededError, match="'all'"):
            fit(private)
        np.testing.assert_array_equal(private.get_weights()[0], weights[0])

    def test_one_of_several_must_be_named(self, ledger) -> None:
        for name in "ab":
            budgets.open_account(ledger, name, budgets.RenyiFilter(20.0, DELTA))
        private = private_model(ledger)
        with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
            fit(private)
        fit(private, run=keras_dp.RunDetails(account="b"))

        a, b = ledger.accounts
        assert not any(a.balance.spent)
        assert any(b.balance.spent)

    @pytest.mark.parametrize("loop", ["fit", "own"])
    def test_a_run_whose_room_is_taken_in_between_stops(
        self, ledger, loop
    ) -> None:
        """Another process takes all that the last look still saw."""
        planned = self.planned(ledger)
        budgets.open_account(
            ledger, "all", budgets.FixedPlan([(planned, 10)], 10.0, DELTA)
        )
        other = ledger.start_run("other", limits=RunLimits(ledger))

        def spends(model=None) -> None:
            account = ledger.accounts[0]
            charge = budgets.charge_of(account, planned)
            other.record(
                planned.sampling,
                planned.queries,
                account.balance.room(charge, 10),
                seeded=planned.seeded,
            )

        if loop == "fit":
            private = private_model(ledger)
            fit(private, epochs=10, callbacks=[StopsAfter(1, spends)])
            assert int(private.optimizer.iterations) == 1
        else:
            answers = own_loop(ledger).over(batches(), rounds=40)
            next(answers)
            spends()
            assert list(answers) == []

        assert len(ledger) == 10
        assert [(len(run), run.outcome) for run in ledger.runs] == [
            (9, None),
            (1, "budget"),
        ]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_without_a_length_has_no_plan(ledger) -> None:
    x = np.zeros([24, 3], "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, 0]))
    data = data.filter(lambda x, y: True).batch(8)

    private_model(ledger).fit(data, epochs=2, shuffle=False, verbose=0)

    (run,) = ledger.runs
    assert (run.plan, run.outcome, len(run)) == (None, "finished", 6)
    assert budgets.guarantee(ledger, delta=DELTA).basis == "as if fixed"


class TestALedgerThatFails:
    """Training stops before the round that it cannot cover."""

    @pytest.mark.parametrize(
        ("failure", "message"),
        [
            ("removed", "was moved, removed or replaced.*Put the file back"),
            ("replaced", "was moved, removed or replaced.*Put the file back"),
            ("full", "full.*Nothing may be released.*Check the disk"),
            ("read-only", "readonly.*Nothing may be released.*permissions"),
            ("closed", "The ledger is closed. Open it again"),
        ],
    )
    def test_in_the_middle_of_fit(self, failure, message, tmp_path) -> None:
        path = tmp_path / "l.db"
        PrivacyLedger.open(path, dataset="d").close()
        connection = storage.connect_writing(path)
        connections.adopt(connection)
        ledger = PrivacyLedger(FileHandle(connection, path, writable=True))
        copy = path.read_bytes()
        weights = []

        def fails(model) -> None:
            weights.append(model.get_weights())
            if failure in ("removed", "replaced"):
                path.unlink()
            if failure == "replaced":
                path.write_bytes(copy)
            if failure == "full":
                pages = connection.execute("PRAGMA page_count").fetchone()[0]
                connection.execute(f"PRAGMA max_page_count={pages}")
            if failure == "read-only":
                connection.execute("PRAGMA query_only=ON")
            if failure == "closed":
                ledger.close()

        private = adapting_model(ledger)
        with pytest.raises(LedgerError, match=message):
            fit(private, epochs=100, callbacks=[StopsAfter(3, fails)])

        # A commit that needs no new page is still written to a full disk.
        if failure != "full":
            assert int(private.optimizer.iterations) == 3
            np.testing.assert_array_equal(
                private.get_weights()[0], weights[0][0]
            )
        released = int(private.optimizer.iterations)
        ledger.close()
        if failure not in ("removed", "replaced"):
            with PrivacyLedger.open(path) as again:
                assert len(again) >= released
                assert again.verify().rounds == len(again)
