"""Nests are walked, cut, joined, saved and frozen in one way."""

import collections
import copy
import dataclasses
import json
import pickle

import pytest

from keras_dp import _nests
from keras_dp.dp_queries.saving import Configured

Pair = collections.namedtuple("Pair", ["one", "two"])


@dataclasses.dataclass(frozen=True)
class Held(Configured):
    nest: object


NESTS = [
    7,
    {},
    [],
    (),
    {"b": 1, "a": 2},
    [1, (2, {"x": 3})],
    Pair([1], {"k": Pair(2, (3,))}),
    {"b": [Pair(1, {})], "a": ([[]],)},
]

each_nest = pytest.mark.parametrize("nest", NESTS, ids=repr)


@each_nest
class TestEachNest:
    def test_freezes_equal_and_hashes_and_prints_alike(self, nest) -> None:
        frozen = _nests.frozen(nest)

        assert frozen == nest
        assert nest == frozen
        assert repr(frozen) == repr(nest)
        assert hash(frozen) == hash(_nests.frozen(copy.deepcopy(nest)))

    def test_stays_frozen_in_copies(self, nest) -> None:
        frozen = _nests.frozen(nest)

        for other in (
            pickle.loads(pickle.dumps(frozen)),
            copy.deepcopy(frozen),
            copy.copy(frozen),
        ):
            assert other == frozen
            assert type(other) is type(frozen)
            hash(other)

    def test_thaws_to_plain_containers(self, nest) -> None:
        thawed = _nests.thawed(_nests.frozen(nest))

        assert repr(thawed) == repr(nest)
        assert type(thawed) is type(nest)

    def test_survives_json_as_a_field(self, nest) -> None:
        config = Held(_nests.frozen(nest)).get_config()

        assert Held.from_config(json.loads(json.dumps(config))).nest == nest


def test_what_was_frozen_does_not_change_with_what_it_was_made_of() -> None:
    nest = {"a": [1]}
    frozen = _nests.frozen(nest)

    nest["a"].append(2)
    nest["b"] = 3

    assert frozen == {"a": [1]}


@pytest.mark.parametrize(
    "change",
    [
        lambda nest: nest.update(a=0),
        lambda nest: nest.__setitem__("a", 0),
        lambda nest: nest.__delitem__("a"),
        lambda nest: setattr(nest, "_items", {}),
        lambda nest: nest["a"].append(0),
        lambda nest: nest["a"].__setitem__(0, 0),
        lambda nest: nest._items.update(a=0),
        lambda nest: nest._items.__setitem__("a", 0),
    ],
)
def test_what_is_frozen_cannot_be_changed(change) -> None:
    frozen = _nests.frozen({"a": [1]})

    with pytest.raises((TypeError, AttributeError)):
        change(frozen)

    assert frozen == {"a": [1]}


@pytest.mark.parametrize(
    ("prefix", "nest"),
    [
        ({"a": 0}, [5]),
        ([0], {0: 5}),
        ({"a": [0]}, {"a": 5}),
        ({"a": 0}, {"b": 5}),
        ({"a": (0, 0)}, {"a": (5,)}),
    ],
    ids=str,
)
def test_other_structures_are_refused_without_their_leaves(
    prefix, nest
) -> None:
    with pytest.raises(ValueError, match=r"^Rule\. Received: ") as error:
        _nests.split(_nests.frozen(prefix), _nests.frozen(nest), "Rule.")

    assert "5" not in str(error.value)
