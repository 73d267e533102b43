"""An exact test of the number of random labels that a model predicts."""

import dataclasses

from scipy import stats

from keras_dp import _check


@dataclasses.dataclass(frozen=True, slots=True)
class MemorizationCheck:
    """Tests how many random labels a trained model predicts.

    A model that does not depend on the labels predicts each of them with
    probability `1 / classes`, independently, because the labels are
    independent. So the number of right predictions is binomial, and the test is
    exact.

    A model that passes may have any epsilon. The check can find memorization,
    but a stronger attack, or another model of the same training, may find more.
    In van der Veen et al. a training passes whose published epsilon is 20, but
    whose epsilon is 421.

    Attributes:
        correct: The number of right predictions.
        labels: The number of labels.
        classes: The number of different labels, all equally likely.
        false_alarm: An upper bound on the probability that `memorizes` is true
            for a model that does not depend on the labels, in (0, 1].

    Source: van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1,
    Section 2.1. They compare accuracies. We test a hypothesis.

    >>> MemorizationCheck(correct=112, labels=1000, classes=10).memorizes
    False
    >>> MemorizationCheck(correct=145, labels=1000, classes=10).memorizes
    True
    """

    correct: int
    labels: int
    classes: int
    false_alarm: float = 0.01

    def __post_init__(self) -> None:
        _check.integer_at_least(2, classes=self.classes)
        _check.integer_at_least(1, labels=self.labels)
        _check.integer_at_least(0, correct=self.correct)
        _check.probability(false_alarm=self.false_alarm)
        if self.correct > self.labels:
            raise ValueError(
                "`correct` must be at most `labels`. Received: correct="
                f"{self.correct!r}, labels={self.labels!r}. Count each label "
                "once."
            )

    @property
    def p_value(self) -> float:
        """The probability of at least `correct` right ones without memory."""
        found = stats.binomtest(
            self.correct, self.labels, 1 / self.classes, "greater"
        )
        return float(found.pvalue)

    @property
    def memorizes(self) -> bool:
        """Whether the p-value is below `false_alarm`."""
        return self.p_value < self.false_alarm
