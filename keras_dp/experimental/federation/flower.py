"""Carries a private federated training over Flower: its server and clients."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from absl import logging
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from keras_dp import _check
from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.experimental.federation.federated_model import (
    FederatedModel,
    LocalTraining,
)
from keras_dp.experimental.federation.remote_rounds import RemoteRounds
from keras_dp.sampling import random_words
from keras_dp.spending import RunDetails

POLL_SECONDS = 1.0


class FlowerStrategy(Strategy):
    """Trains a `FederatedModel` on the users of a Flower federation.

    In each round the server draws nodes, sends them the weights, and receives
    their weights after local training. The server clips the update of each
    node, sums the updates and adds noise, as the model's query does. The
    model's optimizer applies the result. One node is one user, and one unit of
    the ledger.

    Guarantee: as for `RemoteRounds`. The server sees each update without noise.
    It releases only noised weights, and public numbers of the query. The
    amplification by sampling holds against those who do not learn which nodes
    were asked.

    Attributes:
        federated: The compiled model. After `start` it is trained.
        sampling_probability: The probability of each connected node to take
            part in a round, in [2^-60, 1].
        min_available_nodes: The number of connected nodes for which a round
            waits, >= 1.

    Source: McMahan et al. (2018), arXiv:1710.06963v3, Algorithm 1. Messages
    have the form of Flower's `FedAvg`: records "arrays" and "config".

    >>> import keras, keras_dp
    >>> from keras_dp.experimental.federation import LocalTraining
    >>> federated = FederatedModel(
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
    ...     LocalTraining(0.1))
    >>> federated.compile(
    ...     keras_dp.DPSGD(1.0,
    ...         ledger=keras_dp.PrivacyLedger.in_memory(
    ...             dataset="doc", unit="user"),
    ...         query=keras_dp.GaussianAverageQuery(
    ...             1.0, noise_multiplier=1.1, denominator=4)),
    ...     loss="mse")
    >>> FlowerStrategy(federated, sampling_probability=0.1).min_available_nodes
    1
    """

    def __init__(
        self,
        federated: FederatedModel,
        *,
        sampling_probability: float,
        min_available_nodes: int = 1,
    ) -> None:
        _check.kind(FederatedModel, federated=federated)
        _check.probability(sampling_probability=sampling_probability)
        _check.integer_at_least(1, min_available_nodes=min_available_nodes)
        self.federated = federated
        self.sampling_probability = float(sampling_probability)
        self.min_available_nodes = int(min_available_nodes)
        self._rounds: RemoteRounds | None = None
        self._sent: ArrayRecord | None = None

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
        | None = None,
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
    ) -> Result:
        """Runs rounds as Flower's strategies do, and records each of them.

        Args:
            grid: The grid that Flower gives the `ServerApp`.
            initial_arrays: The weights to start from, in the order of
                `get_weights`; by default the model's own.
            num_rounds: The number of rounds, >= 1. If the target or the account
                ends the training before, the rounds that are left ask no node.
            timeout: The seconds that a round waits for answers. Answers that
                are missing then count as zero.
            train_config: The settings that are sent to each client. The
                strategy adds the number of the round as "server-round".
            evaluate_config: Must be `None`.
            evaluate_fn: Called before the first round and after each round,
                with the number of the round and the weights. It must not read
                the users' data.
            target_epsilon: As in `FederatedModel.fit`.
            delta: The delta of `target_epsilon`, as in `FederatedModel.fit`; by
                default 1e-5, or the delta of the model's own target.
            run: As in `FederatedModel.fit`.

        Returns:
            Flower's `Result`, with the noised weights and the query's public
            numbers.

        Raises:
            BudgetExceededError: The target or the account leaves no room for
                the first round.
            PrivateTrainingError: The ledger, its unit, the strategy or the
                model does not suit users in other processes.
            ValueError: `evaluate_config` is not `None`, or a number is out of
                its range.
        """
        if evaluate_config is not None:
            raise ValueError(
                "`evaluate_config` must be None: metrics of clients have no "
                f"noise. Received: evaluate_config={evaluate_config!r}. "
                "Evaluate public records in evaluate_fn."
            )
        rounds = RemoteRounds(
            self.federated,
            self.sampling_probability,
            num_rounds,
            target_epsilon=target_epsilon,
            delta=delta,
            run=run,
        )

        def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            ended = number > 0 and self._sent is None
            return (
                None
                if ended or not evaluate_fn
                else evaluate_fn(number, arrays)
            )

        with rounds.recording():
            if initial_arrays is not None:
                arrays = initial_arrays.to_numpy_ndarrays()
                self.federated.model.set_weights(arrays)
            self._rounds = rounds
            try:
                return super().start(
                    grid,
                    self._arrays(),
                    num_rounds,
                    timeout,
                    train_config,
                    None,
                    evaluated if evaluate_fn else None,
                )
            finally:
                self._rounds = self._sent = None

    @override
    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Records the round, and returns a message for each node it drew.

        Without room for another round it returns no message.
        """
        rounds = self._running()
        self._sent = None
        asked = rounds.draw(self._connected(grid))
        if asked is None:
            return []
        self._sent = self._arrays()
        content = RecordDict(
            {
                "arrays": self._sent,
                "config": ConfigRecord(
                    {**config, "server-round": server_round}
                ),
            }
        )
        return [
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
            for node in asked
        ]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sums the clipped updates, and returns the noised weights.

        The metrics are the query's public scalars. Metrics of clients are not
        read.
        """
        rounds, sent = self._running(), self._sent
        if sent is None:
            return None, None
        refused = 0
        for reply in replies:
            weights = self._weights_in(reply, sent)
            node = reply.metadata.src_node_id
            refused += weights is None or not rounds.receive(node, weights)
        if refused:
            logging.warning(
                "%d replies of round %d were not counted: they hold an error "
                "or other arrays than the model's, or their node was not asked "
                "or had answered before.",
                refused,
                server_round,
            )
        metrics = rounds.release()
        return self._arrays(), MetricRecord({**metrics}) if metrics else None

    @override
    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Returns no message, because metrics of clients have no noise."""
        return []

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns `None`, because no client evaluates."""
        return None

    @override
    def summary(self) -> None:
        """Logs the model and the sampling probability."""
        logging.info("%r", self)

    def __repr__(self) -> str:
        return (
            f"<FlowerStrategy of {self.federated!r}, "
            f"sampling_probability={self.sampling_probability:.6g}>"
        )

    def _running(self) -> RemoteRounds:
        if self._rounds is None:
            raise PrivateTrainingError(
                "A round must run inside start, which records it. Call "
                "start(grid, num_rounds=...)."
            )
        return self._rounds

    def _connected(self, grid: Grid) -> list[int]:
        """Waits for enough nodes, and returns all that are connected."""
        while True:
            nodes = sorted(set(grid.get_node_ids()))
            if len(nodes) >= self.min_available_nodes:
                return nodes
            time.sleep(POLL_SECONDS)

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord(self.federated.model.get_weights())

    def _weights_in(
        self, reply: Message, sent: ArrayRecord
    ) -> list[npt.NDArray[Any]] | None:
        """Returns the trainable weights of a reply, or `None` without all."""
        if not reply.has_content():
            return None
        answered = reply.content.array_records.get("arrays")
        if answered is None or [*answered] != [*sent]:
            return None
        model = self.federated.model
        trained = {id(each) for each in model.trainable_variables}
        found = {
            id(variable): _array_in(answered[key], sent[key], variable.dtype)
            for key, variable in zip(sent, model.weights, strict=True)
            if id(variable) in trained
        }
        weights = [found[id(each)] for each in model.trainable_variables]
        present = [each for each in weights if each is not None]
        return present if len(present) == len(weights) else None


def _array_in(
    answered: Array, sent: Array, dtype: str
) -> npt.NDArray[Any] | None:
    """Returns an array of a reply, or `None` if its format is another.

    The bytes before the numbers must be equal to those of the array that was
    sent. So the server parses nothing that a client wrote.
    """
    data, like = answered.data, sent.data
    size = np.dtype(dtype).itemsize * int(np.prod(sent.shape, dtype=np.int64))
    start = len(like) - size
    if len(data) != len(like) or data[:start] != like[:start]:
        return None
    return np.ndarray(sent.shape, dtype, data, start)


class FlowerClient:
    """Trains on the records of one user by gradient descent, in Keras.

    The client answers a `FlowerStrategy` with the weights after the user's
    training, and with nothing else. It does not clip or add noise. The server
    does both, and sees the weights of each user. The server accepts any other
    client that answers with the weights in the same order.

    Attributes:
        model: The model, which the client compiles. After an answer, it has the
            weights of this answer.
        local: The learning rate, the epochs and the batch size. The last batch
            of an epoch may be smaller.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> client = FlowerClient(model, "mse", LocalTraining(0.1, batch_size=2))
    >>> client.local.batch_size
    2
    """

    def __init__(
        self, model: keras.Model, loss: Any, local: LocalTraining
    ) -> None:
        """Compiles the model.

        Args:
            model: A model with the architecture of the server's model.
            loss: As in `keras.Model.compile`.
            local: The learning rate, the epochs and the batch size.

        Raises:
            TypeError: `local` is not a `LocalTraining`.
        """
        _check.kind(LocalTraining, local=local)
        self.model, self.local = model, local
        model.compile(keras.optimizers.SGD(local.learning_rate), loss)

    def train(
        self, message: Message, x: Any, y: Any, sample_weight: Any = None
    ) -> Message:
        """Trains from the server's weights, and returns the answer.

        Args:
            message: The server's message, which holds the weights to start
                from.
            x: The inputs of the user's records, leaves `[records, ...]`, with
                at least one record. The client puts records into a random
                order, which is the same in all epochs.
            y: The targets, leaves `[records, ...]`.
            sample_weight: The weights of records, shape `[records]`; `None` for
                equal ones.
        """
        arrays = message.content.array_records["arrays"]
        self.model.set_weights(arrays.to_numpy_ndarrays())
        count = len(keras.tree.flatten(x)[0])
        order = np.argsort(random_words.from_operating_system(count))
        x, y, sample_weight = keras.tree.map_structure(
            lambda leaf: None if leaf is None else np.asarray(leaf)[order],
            (x, y, sample_weight),
        )
        self.model.fit(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=self.local.batch_size or count,
            epochs=self.local.epochs,
            shuffle=False,
            verbose=0,
        )
        weights = ArrayRecord(self.model.get_weights())
        return Message(RecordDict({"arrays": weights}), reply_to=message)
