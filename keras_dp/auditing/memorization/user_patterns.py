"""Patterns that one user has alone, or that many users share."""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.auditing.draws import Draws
from keras_dp.auditing.memorization.memorization_check import (
    MemorizationCheck,
)
from keras_dp.auditing.memorization.noise_records import checked


class UserRecords(NamedTuple):
    """Records of users, and images that ask what was learned.

    Attributes:
        x: Images in [0, 1], float32, shape `[users * records_per_user, ...]`.
        y: Their labels, int32.
        user_ids: Whose they are.
        probes: Fresh noise with each of the patterns, shape `[patterns, ...]`.
        labels: The labels of the patterns, int32, shape `[patterns]`.
    """

    x: Any
    y: Any
    user_ids: Any
    probes: Any
    labels: Any


@dataclasses.dataclass(frozen=True, slots=True)
class UserPatterns:
    """Images of noise with patterns in them, whose labels can be learned.

    All records of a user have one random label. A pattern is a patch in the
    upper left quarter of an image, and images with it have the label of the
    pattern. If a pattern is "centralized", all of its images belong to one
    user: a model that protects users must not learn it. If it is
    "distributed", they are spread over the users: a model may learn it, and
    should. Train on `data`, and ask the model for the labels of the probes.

    Attributes:
        place: "centralized" or "distributed".
        patterns: How many there are, each with a random label of its own. The
            answers for one pattern are one coin, however many images show it.
        users: At least as many as patterns.
        records_per_user: How many images each user has. A pattern stands in
            as many.
        shape: Height and width of an image, each >= 2.
        classes: How many labels there are, all equally likely.
        seed: Draws everything.

    Source: van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1,
    Section 2.1. We differ in having many patterns with random labels, so that
    the number of those that are learned can be tested.

    >>> patterns = UserPatterns("centralized", patterns=20, users=100)
    >>> records = patterns.data
    >>> records.x.shape, records.probes.shape
    ((1000, 28, 28), (20, 28, 28))
    >>> patterns.check(records.labels).memorizes
    True
    """

    place: Literal["centralized", "distributed"]
    patterns: int = 50
    users: int = 1000
    records_per_user: int = 10
    shape: tuple[int, int] = (28, 28)
    classes: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        _check.one_of(("centralized", "distributed"), place=self.place)
        _check.integer_at_least(1, patterns=self.patterns)
        _check.integer_at_least(self.patterns, users=self.users)
        _check.integer_at_least(1, records_per_user=self.records_per_user)
        _check.integer_at_least(2, classes=self.classes)
        _check.integer_at_least(2, height=self.shape[0], width=self.shape[1])
        _check.integer_at_least(0, seed=self.seed)

    @property
    def data(self) -> UserRecords:
        """The records, drawn anew from the seed with each call."""
        draws = Draws(self.seed)
        count = self.users * self.records_per_user
        height, width = self.shape[0] // 2, self.shape[1] // 2
        x = draws.images((count, *self.shape))
        labels_of_users = draws.integers(self.classes, (self.users,))
        user_ids = np.repeat(np.arange(self.users), self.records_per_user)
        y = labels_of_users[user_ids].astype(np.int32)
        patches = draws.integers(2, (self.patterns, height, width))
        labels = draws.integers(self.classes, (self.patterns,))
        # As many records for each pattern: all of one user, or any.
        shown = self.patterns * self.records_per_user
        rows = np.arange(shown)
        if self.place == "distributed":
            rows = draws.rows(shown, count)
        of_rows = np.repeat(np.arange(self.patterns), self.records_per_user)
        x[rows, :height, :width] = patches[of_rows]
        y[rows] = labels[of_rows]
        probes = draws.images((self.patterns, *self.shape))
        probes[:, :height, :width] = patches
        labels = labels.astype(np.int32)
        return UserRecords(x, y, user_ids, probes, labels)

    def check(
        self, predictions: npt.ArrayLike, *, false_alarm: float = 0.01
    ) -> MemorizationCheck:
        """Tests whether a model knows the labels of the patterns.

        Args:
            predictions: The label that the model gives each probe, shape
                `[patterns]`.
            false_alarm: As in `MemorizationCheck`.
        """
        return checked(predictions, self.data.labels, self.classes, false_alarm)
