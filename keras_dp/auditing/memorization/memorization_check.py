"""The exact test of how many random labels a model knows."""

import dataclasses

from scipy import stats

from keras_dp import _check


@dataclasses.dataclass(frozen=True, slots=True)
class MemorizationCheck:
    """How many of some random labels a trained model says right.

    A model that does not depend on the labels says each of them right with
    probability `1 / classes`, independently, because the labels are. So the
    number is binomial and the test is exact.

    To pass says nothing about epsilon. The check finds that a model has learned
    what it must not; it does not find that a stronger attack would fail, or
    that another model has not. van der Veen et al. state that it passes at
    epsilon 20, for a training whose epsilon is 421.

    Attributes:
        correct: Labels that were said right.
        labels: How many labels there are.
        classes: How many kinds of labels, all equally likely.
        false_alarm: The chance that a model which does not depend on the
            labels is said to memorize, in (0, 1).

    Source: van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1,
    Section 2.1. They compare accuracies; we differ in testing.

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
                f"`correct` must be at most labels={self.labels}. Received: "
                f"correct={self.correct!r}."
            )

    @property
    def p_value(self) -> float:
        """The chance of so many right labels without memory, or of more."""
        found = stats.binomtest(
            self.correct, self.labels, 1 / self.classes, "greater"
        )
        return float(found.pvalue)

    @property
    def memorizes(self) -> bool:
        """Whether so many right labels are rarer than `false_alarm`."""
        return self.p_value < self.false_alarm
