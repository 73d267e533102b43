"""Vocabularies: what a record adds, what is released, and which layer it is."""

import math
from collections import Counter

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import (
    IntegerLookup,
    StringLookup,
    TextVectorization,
    vocabulary,
)
from keras_dp.preprocessing.lookups import OUTPUT_MODES
from keras_dp.preprocessing.vocabulary import UNITS, key_sums

SPECIAL = {"", "[UNK]", -1}
# A threshold of 1.5 to 1.6 without noise: a key must be held by two records.
LITTLE = {"noise_multiplier": 0.1, "threshold_delta": 1e-6}


def in_memory(**header):
    return PrivacyLedger.in_memory(dataset="test", **header)


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(vocabulary, "noised", lambda sums, stddev: sums)


def released(layer):
    """Returns the vocabulary without special tokens, in its order."""
    plain = [
        each.item() if hasattr(each, "item") else each
        for each in layer.get_vocabulary()
    ]
    return [each for each in plain if each not in SPECIAL]


keys = st.integers(0, 30)
sets = st.sets(keys, max_size=20)


class TestWhatARecordAdds:
    def test_is_as_computed_by_hand(self) -> None:
        found = key_sums([{"a"}, {"a", "b"}, {"b", "c", "d", "e"}, set()], 4)

        half = math.isqrt(UNITS**2 // 2)
        assert found == {
            "a": UNITS + half,
            "b": half + UNITS // 2,
            **dict.fromkeys("cde", UNITS // 2),
        }

    @hypothesis.given(st.lists(sets, max_size=6), sets, st.integers(1, 25))
    def test_has_norm_one_and_equal_weights(
        self, others, record, max_keys
    ) -> None:
        """No record moves the exact sums by more, nor more of them."""
        hypothesis.assume(all(len(each) <= max_keys for each in others))
        before, after = (
            Counter(key_sums(records, max_keys))
            for records in (others, [*others, record])
        )

        after.subtract(before)
        moved = [each for each in after.values() if each]
        assert sum(each**2 for each in moved) <= UNITS**2
        assert len(moved) == min(len(record), max_keys)
        assert len({*moved}) <= 1
        assert not moved or min(moved) >= UNITS / math.sqrt(len(moved)) - 1

    def test_is_cut_at_random(self) -> None:
        """Each of 10 keys is one of 3 in 600 of 2000 records, +- 100."""
        found = key_sums([{*range(10)}] * 2000, 3)

        weight = math.isqrt(UNITS**2 // 3)
        counts = {total // weight for total in found.values()}
        assert len(found) == 10
        assert all(500 < count < 700 for count in counts)


class TestStringLookup:
    @pytest.mark.parametrize(
        "data",
        [
            ["b", "a", "b", "b", "a", "c", None],
            np.array(["b", "a", "b", "b", "a", "c"]),
            np.array([b"b", b"a", b"b", b"b", b"a", b"c"]),
            np.array(["b", "a", "b", "b", "a", "c", None], object),
            np.array([["b"], ["a"], ["b"], ["b"], ["a"], ["c"]]),
            tf.constant(["b", "a", "b", "b", "a", "c"]),
            tf.data.Dataset.from_tensor_slices(list("babbac")).batch(4),
            tf.data.Dataset.from_tensor_slices((list("babbac"), range(6))),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_takes_texts_by_their_sums(self, data, without_noise) -> None:
        layer = StringLookup(**LITTLE).adapt(data, in_memory())

        assert type(layer) is keras.layers.StringLookup
        assert released(layer) == ["b", "a"]
        assert layer(tf.constant(["a", "b", "c"])).numpy().tolist() == [2, 1, 0]

    @pytest.mark.parametrize(
        "data",
        [
            [["a", "b"], ["a", "b"], ["a"], [], ["c", "c", "c"]],
            [["a", "b"], ("a", "b"), ["a", ""], ["", ""], ["c", "c"]],
            np.array([["a", "b"], ["a", "b"], ["a", ""], ["c", "c"]]),
            tf.ragged.constant([["a", "b"], ["a", "b"], ["a"], ["c", "c"]]),
        ],
        ids=["lists", "mixed", "array", "ragged"],
    )
    def test_takes_several_texts_a_record(self, data, without_noise) -> None:
        """`a` has 1 + sqrt(2), `b` sqrt(2), and the threshold is 1.2."""
        adapter = StringLookup(0.1, 0.02, max_keys=2, mask_token="")

        assert adapter.events()[0].threshold < math.sqrt(2)
        assert released(adapter.adapt(data, in_memory())) == ["a", "b"]

    @pytest.mark.parametrize("output_mode", OUTPUT_MODES)
    @pytest.mark.parametrize("mask_token", [None, ""])
    def test_keeps_the_largest_sums(
        self, output_mode, mask_token, without_noise
    ) -> None:
        data = [letter for n, letter in enumerate("fedcba") for _ in range(n)]
        adapter = StringLookup(
            **LITTLE,
            max_tokens=3,
            mask_token=mask_token,
            output_mode=output_mode,
        )

        layer = adapter.adapt(data, in_memory())

        masked = mask_token is not None and output_mode == "int"
        assert released(layer) == (["a"] if masked else ["a", "b"])
        assert layer.vocabulary_size() == 3

    def test_never_has_a_text_that_nobody_holds(self) -> None:
        """With much noise and no threshold to speak of."""
        layer = StringLookup(5.0, 0.5).adapt(["a", "b"] * 200, in_memory())

        assert {*released(layer)} == {"a", "b"}


class TestIntegerLookup:
    @pytest.mark.parametrize(
        "data",
        [
            [7, 7, 5, 5, 5, 2**62, -1, -1, -1],
            np.array([7, 7, 5, 5, 5, 9, -1, -1], np.int8),
            tf.data.Dataset.from_tensor_slices([7, 7, 5, 5, 5, 9]).batch(5),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_takes_numbers_by_their_sums(self, data, without_noise) -> None:
        layer = IntegerLookup(**LITTLE).adapt(data, in_memory())

        assert type(layer) is keras.layers.IntegerLookup
        assert released(layer) == [5, 7]
        assert layer(np.array([5, 7, 9])).numpy().tolist() == [1, 2, 0]


class TestTextVectorization:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"standardize": None},
            {"standardize": "lower"},
            {"ngrams": (2,)},
            {"ngrams": 2},
            {"split": "character"},
            {"split": None},
        ],
        ids=repr,
    )
    def test_takes_words_as_layers_do(self, options, without_noise) -> None:
        """With few keys a record, each word that two texts hold passes."""
        texts = ["a b", "a b!", "b a", "b", "a c", None, b"\xff \xfe", "a b"]
        adapter = TextVectorization(0.01, 1e-6, max_keys=4, **options)
        held = Counter(
            word for text in texts for word in {*words_of_keras(text, options)}
        )
        expected = {word for word, count in held.items() if count >= 3}

        if not expected:
            with pytest.raises(ValueError, match="`data` must have a key"):
                adapter.adapt(texts, in_memory())
            return
        layer = adapter.adapt(texts, in_memory())

        assert type(layer) is keras.layers.TextVectorization
        assert expected <= {*released(layer)}


def words_of_keras(text, options):
    """The words that Keras itself would find in one text."""
    if text is None:
        return []
    options = {"standardize": "lower_and_strip_punctuation", **options}
    layer = keras.layers.TextVectorization(**options)
    try:
        layer.adapt([text])
        return [str(word) for word in layer.get_vocabulary()[2:]]
    except UnicodeError:
        return []


def test_says_no_more_of_the_data_where_nothing_passes() -> None:
    adapter, ledger, messages = StringLookup(**LITTLE), in_memory(), set()

    for few in (["a", "b"], ["a"], []):
        with pytest.raises(ValueError, match="The round counts") as error:
            adapter.adapt(few, ledger)
        messages.add(str(error.value))

    assert len(messages) == 1
    assert len(ledger) == 3
