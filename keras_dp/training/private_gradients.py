"""Private gradients for training loops of the user's own."""

from collections.abc import Generator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.dp_queries import DPQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.groups import Patterns, VariableGroups
from keras_dp.optimizers.inner_optimizer import KeptAnswers
from keras_dp.sampling import Sampler
from keras_dp.spending.run import RunDetails
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.metrics.private_metrics import PrivateMetric
from keras_dp.training.private_model import PrivateModel


class PrivateGradients:
    """Returns noised gradients to a training loop of the caller's own.

    Use it for loops that `fit` cannot run: with two models, with two
    optimizers, or with gradients of other losses beside the private ones.
    `over` draws a sample and computes a round as `PrivateModel.fit` does. It
    yields the answer instead of applying it. The caller may change the weights
    between two rounds.

    Guarantee: each answer is noised, and the ledger covers it before it is
    computed. What the caller computes from answers and public data is
    post-processing. What the caller computes from the private records is in no
    ledger: see "Own loops" in docs/guarantees.md.

    Attributes:
        model: Sequential, functional or subclassed, built or not.
        metrics: The private metrics of the last round and the public numbers
            of the query, by name. Empty before the first round.

    >>> import keras_dp, numpy as np
    >>> x, y = np.zeros([64, 3], "float32"), np.zeros([64, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> gradients = PrivateGradients(
    ...     model, "mse", ledger=ledger,
    ...     query=keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=16))
    >>> samples = keras_dp.PoissonBatches((x, y), sampling_probability=0.25)
    >>> optimizer = keras.optimizers.SGD(0.1)
    >>> for answer in gradients.over(samples, rounds=8):
    ...     optimizer.apply(answer, model.trainable_variables)
    >>> len(ledger)
    8
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Any,
        *,
        query: DPQuery,
        ledger: PrivacyLedger,
        groups: Patterns | VariableGroups | None = None,
        private_metrics: Mapping[str, PrivateMetric] | None = None,
        batch_statistics: DPQuery | None = None,
        self_check_examples: int = 2,
        seed: int | None = None,
    ) -> None:
        """Runs nothing yet.

        Args:
            model: As in `PrivateModel`.
            loss: Any Keras loss; it is evaluated per example, as that of a
                batch of one.
            query: The mechanism, as in `DPOptimizer`.
            ledger: Where every round is recorded.
            groups: As in `DPOptimizer`.
            private_metrics: As in `PrivateModel.compile`; by default none.
            batch_statistics: As in `PrivateModel.compile`. The statistics of
                the layers are updated with each answer.
            self_check_examples: As in `PrivateModel`.
            seed: As in `DPOptimizer`: for tests.

        Raises:
            PrivateTrainingError: The model has a training step of its own, or
                a strategy is in scope.
        """
        self.model = model
        self.metrics: dict[str, float] = {}
        self._kept = KeptAnswers()
        self._optimizer = DPOptimizer(
            self._kept, query=query, ledger=ledger, groups=groups, seed=seed
        )
        self._private = PrivateModel(
            model, self_check_examples=self_check_examples
        )
        self._private._weights.are_watched = False  # The caller changes them.
        if tf.distribute.has_strategy():
            raise PrivateTrainingError(
                "Private gradients must be computed without a strategy. "
                f"Received: {type(tf.distribute.get_strategy()).__name__}. "
                "Train on several devices with PrivateModel."
            )
        # Nothing is shown of the data but private answers.
        self._private.compile(
            self._optimizer,
            loss,
            private_metrics=private_metrics or {},
            batch_statistics=batch_statistics,
        )

    def over(
        self,
        samples: Sampler,
        rounds: int | None = None,
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
    ) -> Generator[list[tf.Tensor], None, None]:
        """Runs rounds, and yields the answer of each.

        A round runs when its answer is asked for. It uses the weights of that
        moment. When a `for` loop ends, also by `break` or an exception, the
        ledger keeps only the rounds that ran. If you keep the generator in a
        variable, call its `close()`. Until then all rounds that were reserved
        for it count.

        Args:
            samples: A sampler whose records are `(x, y)` or `(x, y,
                sample_weight)`. Its samples are drawn anew for this iteration.
            rounds: The number of rounds, >= 1. By default
                `samples.rounds_per_epoch`.
            target_epsilon: > 0. The iteration ends before a round would exceed
                it. All rounds of the ledger count, also those of other models.
            delta: The delta of the target, in (0, 1). By default `N^-1.1` for N
                records.
            run: As in `PrivateModel.fit`.

        Yields:
            The noised answer for each of `model.trainable_variables`, in their
            order and shapes. It is an average if the query answers averages.
            The gradients of weight penalties, which depend on no data, are
            added.

        Raises:
            BudgetExceededError: The target leaves no room for a single round.
            PrivateTrainingError: An earlier iteration has not ended. Or the
                layers, the trainable variables or the query changed.
        """
        if not isinstance(samples, Sampler):
            raise TypeError(
                "`samples` must be a keras_dp.PoissonBatches, or another "
                "sampler of keras_dp.sampling, which draws the records. "
                f"Received: a {type(samples).__name__}. Pass "
                "PoissonBatches((x, y), sampling_probability=...)."
            )
        if rounds is None:
            rounds = samples.rounds_per_epoch
        _check.integer_at_least(1, rounds=rounds)
        return self._answers(
            samples,
            rounds,
            target_epsilon=target_epsilon,
            delta=delta,
            run=run,
        )

    def _answers(
        self, samples: Sampler, rounds: int, **terms: Any
    ) -> Generator[list[tf.Tensor], None, None]:
        """Runs rounds as `fit` does, and yields after each of them.

        The caller may save the model between two rounds: the secret seeds of
        its layers are replaced before each yield.
        """
        private, fit = self._private, {"steps_per_epoch": rounds}
        training = private._training(DataAdapter(samples), fit, **terms)
        with private._running(training) as loop:
            while rounds and not loop.is_over:
                private.reset_metrics()
                if not loop.run(iter(()), rounds=1):
                    break
                rounds -= 1
                loop.renew_seeds()
                self.metrics = {k: float(v) for k, v in loop.logs.items()}
                yield self._kept.read()
