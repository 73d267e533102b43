"""Images with patterns that one user has, or that many users share."""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.experimental.memorization.memorization_check import (
    MemorizationCheck,
)
from keras_dp.experimental.memorization.noise_records import checked


class UserRecords(NamedTuple):
    """Records of users, and probes for a trained model.

    Attributes:
        x: Images in [0, 1], float32, shape `[users * records_per_user, ...]`.
        y: The labels of the images, int32.
        user_ids: The user of each image.
        probes: One image for each pattern, with new noise around the pattern,
            shape `[patterns, ...]`.
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

    A pattern is a patch in the upper left quarter of an image. Each pattern and
    each user has a random label. An image with a pattern has the label of the
    pattern, and any other image has the label of its user. If patterns are
    "centralized", all images with a pattern belong to one user. A model that
    protects users must not learn its label. If patterns are "distributed",
    their images are spread at random over the users, and a good model learns
    their labels. Train on `data`, and predict the labels of the probes.

    Attributes:
        place: "centralized" or "distributed".
        patterns: The number of patterns, >= 1. Each has one random label and
            counts once in the test, however many images show it.
        users: The number of users, at least `patterns`.
        records_per_user: The number of images of each user, >= 1. As many
            images show each pattern.
        shape: The height and the width of an image, each >= 2.
        classes: The number of different labels, all equally likely, >= 2.
        seed: The seed of all random numbers, >= 0.

    Source: van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1,
    Section 2.1. We use many patterns with random labels, so that the number of
    learned labels can be tested.

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
        """The records. Each call draws the same ones from the seed."""
        draws = np.random.Generator(np.random.Philox(self.seed))
        count = self.users * self.records_per_user
        height, width = self.shape[0] // 2, self.shape[1] // 2
        x = draws.random((count, *self.shape), np.float32)
        labels_of_users = draws.integers(self.classes, size=self.users)
        user_ids = np.repeat(np.arange(self.users), self.records_per_user)
        y = labels_of_users[user_ids].astype(np.int32)
        patches = draws.integers(2, size=(self.patterns, height, width))
        labels = draws.integers(self.classes, size=self.patterns, dtype="i4")
        # As many records for each pattern: all of one user, or any.
        shown = self.patterns * self.records_per_user
        rows = np.arange(shown)
        if self.place == "distributed":
            rows = draws.permutation(count)[:shown]
        of_rows = np.repeat(np.arange(self.patterns), self.records_per_user)
        x[rows, :height, :width] = patches[of_rows]
        y[rows] = labels[of_rows]
        probes = draws.random((self.patterns, *self.shape), np.float32)
        probes[:, :height, :width] = patches
        return UserRecords(x, y, user_ids, probes, labels)

    def check(
        self, predictions: npt.ArrayLike, *, false_alarm: float = 0.01
    ) -> MemorizationCheck:
        """Tests whether a model has learned the labels of patterns.

        Args:
            predictions: The label that the model predicts for each probe, shape
                `[patterns]`.
            false_alarm: As in `MemorizationCheck`.
        """
        return checked(predictions, self.data.labels, self.classes, false_alarm)
