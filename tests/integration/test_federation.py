"""Federated averaging over Flower, with nodes of every temper."""

import functools

import keras
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import keras_dp
from keras_dp import budgets
from keras_dp.dp_queries import (
    JointClipQuery,
    NestedQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.errors import BudgetExceededError, PrivateTrainingError
from keras_dp.experimental.federation import (
    FederatedModel,
    FlowerClient,
    FlowerStrategy,
    LocalTraining,
)
from keras_dp.ledger import GaussianSum, PoissonUserSampling, PrivacyLedger
from keras_dp.sampling import random_words
from tests.slow_loop import flat

USERS, DENOMINATOR, CLIP = 5, 3.0, 0.05
LOCAL = LocalTraining(0.02, epochs=2)


@pytest.fixture(autouse=True)
def _server(monkeypatch):
    """Flower gives each process that sends messages an identity."""
    identify(monkeypatch.setattr)


def identify(assign=setattr):
    for name in ("_run_id", "_node_id", "_task_id"):
        assign(TaskIdentity, name, 1)


class LocalGrid(Grid):
    """Hands messages to functions of this process, and brings the answers.

    A node is a function from a message to the list of its answers.
    """

    def __init__(self, nodes):
        self.nodes, self.sent = nodes, []

    @property
    def asked(self):
        """The nodes that were asked to train, round by round."""
        assert not any(self.sent[1::2])  # None is asked to evaluate.
        return self.sent[::2]

    # No strategy here asks for these.
    set_run = run = create_message = push_messages = pull_messages = None

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent.append([each.metadata.dst_node_id for each in messages])
        return [
            answer
            for each in messages
            for answer in self.nodes[each.metadata.dst_node_id](each)
        ]


def linear():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def records():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4 * USERS, 3)).astype("float32")
    y = generator.normal(size=(4 * USERS, 1)).astype("float32")
    return x, y, np.arange(4 * USERS) % USERS


def average(noise_multiplier=0.0):
    return keras_dp.GaussianAverageQuery(
        CLIP, noise_multiplier=noise_multiplier, denominator=DENOMINATOR
    )


def federated(
    query=None, ledger=None, optimizer=keras_dp.DPSGD, model=None, **options
):
    made = FederatedModel(model or linear(), LOCAL)
    made.compile(
        optimizer(
            1.0,
            query=average() if query is None else query,
            ledger=ledger or PrivacyLedger.in_memory(dataset="d", unit="user"),
            **options,
        ),
        loss="mse",
    )
    return made


@functools.cache  # Each client compiles its training.
def honest(user):
    """Returns the node of a user, who has every fifth record."""
    x, y, users = records()
    client = FlowerClient(linear(), "mse", LOCAL)
    return lambda message: [
        client.train(message, x[users == user], y[users == user])
    ]


def honest_nodes(users=range(USERS)):
    return {10 + user: honest(user) for user in users}


def idle(message):
    """Answers with the weights that it was sent."""
    return [answer(message, message.content["arrays"])]


def answer(message, arrays):
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def trained(made, nodes, rounds=1, probability=1.0, **options):
    """Returns what the rounds change."""
    before = flat(made.model)
    FlowerStrategy(made, sampling_probability=probability).start(
        LocalGrid(nodes), num_rounds=rounds, **options
    )
    return flat(made.model) - before


def adaptive():
    return NormalizedQuery(
        QuantileAdaptiveClipSumQuery(0.1, 0.5, 0.5, 0.2, 2.0, 5.0), DENOMINATOR
    )


class TestTheWeights:
    """Against `FederatedModel`, which has the users in one process."""

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("query", "options"),
        [
            (lambda: average(1.3), {"seed": 7}),
            (average, {"optimizer": keras_dp.DPAdam}),
            (lambda: JointClipQuery([0.1, 0.02], 1.0, 0.5, 5.0), {"seed": 7}),
            (
                lambda: NestedQuery({"kernel": adaptive(), "rest": average(2)}),
                {"seed": 7, "groups": {"kernel": "*kernel", "rest": ...}},
            ),
        ],
        ids=["noised", "Adam", "joint", "adaptive in groups"],
    )
    def test_are_those_of_one_process(self, query, options) -> None:
        x, y, users = records()
        here = federated(query(), **options)
        before = flat(here.model)
        here.fit(
            keras_dp.UserBatches(
                (x, y),
                user_ids=users,
                sampling_probability=1.0,
                records_per_user=4,
                rounds_per_epoch=3,
            ),
            verbose=0,
        )
        there = federated(query(), **options)

        trained(there, honest_nodes(), rounds=3)

        moved = np.abs(flat(here.model) - before).max()
        np.testing.assert_allclose(
            flat(here.model), flat(there.model), atol=1e-4 * moved
        )
        one, other = (
            [
                (each.queries, count)
                for each, count in made.optimizer.ledger.rounds
            ]
            for made in (here, there)
        )
        assert one == other


def changing(change):
    """Returns a node that answers with a function of the arrays it was sent."""

    def node(message):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        return [answer(message, ArrayRecord(change(arrays)))]

    return node


def moved_by(number):
    """Returns a node that claims the same change of every weight."""
    return changing(lambda arrays: [each + number for each in arrays])


def with_first(change):
    """Returns a node that answers with another array in the first's place."""

    def node(message):
        arrays = dict(message.content["arrays"])
        return [
            answer(message, ArrayRecord(arrays | {"0": change(arrays["0"])}))
        ]

    return node


def with_header(header):
    def change(first):
        data = header + first.data[len(header) :]
        return Array(first.dtype, first.shape, first.stype, data)

    return with_first(change)


def twice(message):
    return 2 * moved_by(100.0)(message)


def as_another(message):
    """Answers for the others, too."""
    answers = []
    for node in [1, 10, 11, 99]:
        (own,) = moved_by(100.0)(message)
        own.metadata.__dict__["_src_node_id"] = node
        answers.append(own)
    return answers


NOTHING = [
    lambda message: [],
    lambda message: [Message(Error(0, "no"), reply_to=message)],
    lambda message: [Message(RecordDict(), reply_to=message)],
    lambda message: [
        Message(RecordDict({"arrays": ConfigRecord()}), reply_to=message)
    ],
    moved_by(np.float32("nan")),
    moved_by(np.float32("inf")),
    # A bias for each of a thousand users.
    changing(lambda arrays: [arrays[0], np.ones(1000, "float32")]),
    changing(lambda arrays: [each.astype("float64") + 1 for each in arrays]),
    with_header(b"\x80\x04\x95"),  # Of a pickle.
    with_header(b"PK\x03\x04"),  # Of a zip archive.
    with_first(lambda first: Array("float32", (3, 1), first.stype, b"")),
    changing(lambda arrays: [arrays[0] + 1]),
]


class TestAnAnswer:
    def test_that_is_none_counts_as_zero(self) -> None:
        silent = dict.fromkeys(range(len(NOTHING)), idle)
        expected = trained(federated(), {**silent, **honest_nodes([0, 1])})

        nodes = dict(zip(silent, NOTHING, strict=True))
        found = trained(federated(), {**nodes, **honest_nodes([0, 1])})

        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(found, expected, atol=1e-7)

    @pytest.mark.parametrize(
        "node", [moved_by(np.float32(1e20)), moved_by(-100.0), twice]
    )
    def test_moves_the_sum_by_the_clip(self, node) -> None:
        without = trained(federated(), honest_nodes([0, 1]))

        found = trained(federated(), {1: node, **honest_nodes([0, 1])})

        moved = np.linalg.norm(found - without) * DENOMINATOR
        assert moved == pytest.approx(CLIP, rel=1e-4)

    def test_for_another_node_takes_its_place_at_most(self) -> None:
        """Three nodes were asked: three updates count, whoever sent them."""
        found = trained(federated(), {1: as_another, **honest_nodes([0, 1])})

        assert np.linalg.norm(found) * DENOMINATOR <= 3 * CLIP * (1 + 1e-4)

    def test_of_metrics_is_not_read(self) -> None:
        def node(message):
            (own,) = idle(message)
            own.content["metrics"] = MetricRecord({"loss": 3.0})
            return [own]

        result = FlowerStrategy(federated(), sampling_probability=1.0).start(
            LocalGrid({1: node}), num_rounds=1
        )

        assert not result.train_metrics_clientapp

    def test_moves_no_variable_that_is_not_trained(self) -> None:
        model = linear()
        model.layers[0].bias.trainable = False

        changes = trained(federated(model=model), {1: moved_by(100.0)})

        assert changes[3] == 0
        assert np.abs(changes[:3]).max() > 0


class TestTheLedger:
    def test_has_each_round_before_a_node_is_asked(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="patient")
        seen = []

        def node(message):
            seen.append(
                (message.content["config"]["server-round"], len(ledger))
            )
            return idle(message)

        trained(federated(average(1.0), ledger), {1: node}, rounds=4, run="a")

        assert seen == [(each, each) for each in range(1, 5)]
        ((round_, count),) = ledger.rounds
        assert count == 4
        assert round_.sampling == PoissonUserSampling(1.0, True)
        assert round_.queries == (GaussianSum("gradients", CLIP, CLIP),)
        (run,) = ledger.runs
        assert (run.name, run.outcome) == ("a", "finished")
        assert not ledger.unsettled

    def test_has_the_round_in_which_the_network_fails(self) -> None:
        def node(message):
            raise ConnectionError

        made = federated(average(1.0))
        with pytest.raises(ConnectionError):
            trained(made, {1: node})

        assert len(made.optimizer.ledger) == 1
        assert made.optimizer.ledger.runs[0].outcome == "failed"
        trained(made, {1: idle})
        assert len(made.optimizer.ledger) == 2

    @pytest.mark.parametrize(
        ("query", "target"), [(lambda: average(1.0), 4.0), (adaptive, 20.0)]
    )
    def test_ends_the_training_at_the_target(self, query, target) -> None:
        made = federated(query())
        grid, evaluated = LocalGrid({1: idle}), []

        FlowerStrategy(made, sampling_probability=0.5).start(
            grid,
            num_rounds=9,
            evaluate_fn=lambda number, arrays: evaluated.append(number),
            target_epsilon=target,
            delta=1e-5,
        )

        ledger = made.optimizer.ledger
        assert 0 < len(ledger) < 9
        accountant = keras_dp.accountants.Fourier()
        assert accountant.epsilon(ledger, delta=1e-5) <= target
        assert ledger.runs[0].outcome == "budget"
        assert evaluated == [*range(len(ledger) + 1)]
        assert not any(grid.asked[len(ledger) :])
        with pytest.raises(BudgetExceededError):
            trained(made, {1: idle}, target_epsilon=1e-3, delta=1e-5)

    def test_charges_the_account_and_ends_with_its_room(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="user")
        for name in ("a", "b"):
            budgets.open_account(ledger, name, budgets.RenyiFilter(4.0, 1e-5))
        made = federated(average(2.0), ledger)

        trained(
            made,
            {1: idle},
            rounds=9,
            probability=0.5,
            run=keras_dp.RunDetails("c", account="b"),
        )

        assert 0 < len(ledger) < 9
        (run,) = ledger.runs
        assert (run.name, run.start.account) == ("c", "b")
        assert run.outcome == "budget"
        with pytest.raises(ValueError, match="account"):
            trained(federated(average(2.0), ledger), {1: idle})


class TestTheSample:
    def test_is_drawn_for_each_node_alone(self, monkeypatch) -> None:
        monkeypatch.setattr(
            random_words, "from_operating_system", random_words.from_seed(3)
        )
        grid = LocalGrid(dict.fromkeys(range(1, 401), lambda message: []))

        FlowerStrategy(federated(), sampling_probability=0.2).start(
            grid, num_rounds=50
        )

        counts = np.zeros(401)
        for asked in grid.asked:
            assert len(set(asked)) == len(asked)
            counts[asked] += 1
        sizes = np.array([len(asked) for asked in grid.asked])
        # Within 5 standard errors of a binomial's mean and variance.
        assert abs(sizes.mean() - 80) < 5 * np.sqrt(64 / 50)
        assert abs(counts[1:].var() - 8) < 5 * 8 * np.sqrt(2 / 400)
        assert sizes.std() > 4

    def test_of_nobody_releases_noise(self) -> None:
        made = federated(average(1.0))

        changes = trained(made, {1: lambda message: []})

        assert np.abs(changes).min() > 0
        assert len(made.optimizer.ledger) == 1


class TestWhatIsRefused:
    def test_a_ledger_of_records(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="record")

        with pytest.raises(PrivateTrainingError, match="must be what is drawn"):
            trained(federated(ledger=ledger), {1: idle})
        assert not len(ledger)

    def test_evaluation_on_clients(self) -> None:
        with pytest.raises(ValueError, match="`evaluate_config` must"):
            trained(federated(), {1: idle}, evaluate_config=ConfigRecord())

    def test_a_training_inside_another(self) -> None:
        made = federated()

        def node(message):
            trained(made, {1: idle})

        with pytest.raises(PrivateTrainingError, match="inside another"):
            trained(made, {1: node})

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"sampling_probability": 0.0}, "sampling_probability"),
            (
                {"sampling_probability": 1.0, "min_available_nodes": 0},
                "min_available_nodes",
            ),
        ],
    )
    def test_numbers_out_of_range(self, options, name) -> None:
        with pytest.raises(ValueError, match=f"`{name}`"):
            FlowerStrategy(federated(), **options)
