"""Finds stages of a data set in which one record reaches several rows.

A guarantee is for one row. It is one for one record only if each row comes from
one record. What a pipeline shows is refused here: stages that carry something
from record to record, pairs of records, records that are used twice, and arrays
that a function holds beside its record. Nothing here imports TensorFlow: data
sets are read by what they have, in TensorFlow 2.21.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from keras_dp import _nests
from keras_dp.errors import PrivateTrainingError
from keras_dp.sampling.kinds import is_tensorflow

# Stages that carry something from one record to the next.
_CARRYING = ("Scan", "Unique")
# Stages that change the order of records.
_MOVING = ("Shuffle", "Interleave")
# Stages that call functions of the user which return data sets.
_OPAQUE = ("FlatMap", "Interleave", "Window", "GroupByWindow")
# Sources of single records.
_SINGLE = ("TensorSlice", "TFRecord", "TextLine", "FixedLengthRecord", "Range")
# Stages after which it is not known which record stands where.
_DISORDERLY = (*_MOVING, "Filter", "While", "Errors", "Group")
# Stages in which the contents of a record can decide in which batch others are.
_BY_CONTENTS = ("GroupByWindow", "Filter", "TakeWhile")
# Stages that leave the records before the last where they are.
_IN_PLACE = (
    *("Map", "Cache", "Prefetch", "Options", "AssertCardinality", "Snapshot"),
    *("Model", "Take"),
)
# Stages that pass on a part of the records.
_PARTS = ("Take", "Skip", "Shard", "Filter")
_NUMBERS = ("_count", "_num_shards", "_index", "_batch_size", "_size", "_shift")
# Sources of numbers that nobody's record is behind.
_OF_NO_RECORD = ("Range", "Random", "Variant")
# Arrays with fewer rows are not taken for the records: functions of TensorFlow
# hold short ones of their own, of shapes and strides.
_FEWEST_ROWS = 16


class Function(NamedTuple):
    """A function of a stage: its `FuncGraph`.

    `takes_batches` says whether its arguments are batches of records.
    """

    stage: str
    graph: Any
    takes_batches: bool


class Stage:
    """A stage of a `tf.data.Dataset`, with all stages before it.

    Its kind is its class, such as "Map" or "Shuffle". Its inputs are the stages
    right before it, and its graphs those of its functions.
    """

    def __init__(self, dataset: Any) -> None:
        """Reads what `Dataset._inputs` and `Dataset._functions` say."""
        self.dataset, name = dataset, type(dataset).__name__.strip("_")
        name = name.partition("Dataset")[0] or name
        self.kind = name.removeprefix("Parallel").removeprefix("Legacy")
        self.inputs = [Stage(each) for each in dataset._inputs()]
        self.graphs = [each.function.graph for each in dataset._functions()]

    def __iter__(self) -> Iterator["Stage"]:
        """Yields this stage and all before it that have records."""
        yield self
        for each in self.with_records:
            yield from each

    @property
    def kinds(self) -> list[str]:
        """The kinds of all stages, from the first to this one."""
        before = [kind for each in self.inputs for kind in each.kinds]
        return [*before, self.kind]

    @property
    def moves_records(self) -> bool:
        """Whether it changes the order of records."""
        return any(each in self.kind for each in _MOVING)

    @functools.cached_property
    def has_records(self) -> bool:
        """Whether somebody's records may be behind it, and not just numbers."""
        if self.kind in _OPAQUE or any(map(rows_held_by, self.graphs)):
            return True
        if self.inputs:
            return any(each.has_records for each in self.inputs)
        if self.kind == "Tensor":  # A counter begins with a number.
            specs = _nests.leaves(self.dataset.element_spec)
            return any(spec.shape.rank != 0 for spec in specs)
        return self.kind not in _OF_NO_RECORD

    @property
    def with_records(self) -> list["Stage"]:
        """The stages right before it that have records."""
        return [each for each in self.inputs if each.has_records]

    @property
    def is_batched(self) -> bool | None:
        """Whether an element is a batch of records, `None` if nobody knows."""
        if self.kind == "Unbatch":
            return False
        if "batch" in self.kind.lower():
            return True
        if self.kind in _OPAQUE:
            return None
        for each in self.with_records or self.inputs:
            return each.is_batched
        return False if self.kind.startswith(_SINGLE) else None

    def functions(self, is_batched: bool | None) -> Iterator[Function]:
        """Yields the functions of this stage and of all before it.

        The stages before it are looked at where `is_batched` is `None`.
        """
        before = is_batched
        if self.kind in ("Unbatch", "Rebatch"):
            before = True
        elif "Batch" in self.kind:
            before = False
        elif self.kind in _OPAQUE:
            before = None
        takes = before
        for each in self.with_records[:1]:
            takes = each.is_batched if before is None else before
        for graph in self.graphs:
            yield Function(self.kind, graph, bool(takes))
        for each in self.with_records:
            yield from each.functions(before)

    def order(self) -> tuple[Any, ...] | None:
        """Returns what decides which record stands where, `None` if unknown.

        Data sets of the same order hold parts of one record in the same places.
        """
        if any(each in self.kind for each in _DISORDERLY) or any(
            "Shuffle" in name for each in self.graphs for name in kinds_in(each)
        ):
            return None
        before = [each.order() for each in self.with_records]
        if None in before:
            return None
        if self.kind == "Zip" or (self.kind in _IN_PLACE and before):
            return before[0]
        if not before:
            return ()
        given = [getattr(self.dataset, name, None) for name in _NUMBERS]
        numbers = [int(each) for each in given if each is not None]
        if self.kind == "Concatenate":
            numbers = [int(each.dataset.cardinality()) for each in self.inputs]
        return (self.kind, *numbers, *before)

    def sources(self, *, whole: bool = True) -> list[tuple[int, bool]]:
        """Returns the uses of each source, and whether all of it is used.

        `whole` says whether the stages behind this one use all of it.
        """
        if not self.with_records:
            return [(id(self.dataset), whole)] if self.has_records else []
        whole = whole and self.kind not in _PARTS
        uses = [each.sources(whole=whole) for each in self.with_records]
        if self.kind == "Zip":  # A row of it is one of each.
            return list(dict(use for each in uses for use in each).items())
        return [use for each in uses for use in each]


def stages_by_contents(data: Any) -> list[str]:
    """Returns the stages of data in which contents may decide its batches."""
    if not is_tensorflow(data):
        return []
    kinds = Stage(data).kinds
    found = [kind for kind in kinds if any(x in kind for x in _BY_CONTENTS)]
    specs = _nests.leaves(data.element_spec)
    shapes = [each.shape for each in specs if hasattr(each, "shape")]
    if any(shape.rank and None in shape[1:] for shape in shapes):
        found += [kind for kind in kinds if kind == "PaddedBatch"]
    return found


def check(
    dataset: Any,
    name: str,
    *,
    is_batched: bool,
    once: bool = True,
    records: int | None = None,
) -> list[Function]:
    """Raises if the stages of a data set show that records reach others' rows.

    With `once`, all batches together must hold each record once, and not just
    every batch. The functions of its stages are returned, of which more can be
    seen elsewhere.
    """
    last = Stage(dataset)
    starts = [stage for stage in last if not stage.with_records]
    known = {int(stage.dataset.cardinality()) for stage in starts}
    known.add(-1 if records is None else records)
    for stage in reversed([*last]):
        what = _carried(stage) or _mixed(stage, once=once)
        if what is not None:
            raise refusal(name, what)
        if stage.with_records:
            check_holds_no_records(stage.graphs, known, name)
    return list(last.functions(is_batched))


def _carried(stage: Stage) -> str | None:
    inside = {kind for graph in stage.graphs for kind in kinds_in(graph)}
    for kind in _CARRYING:
        if stage.kind == kind or f"{kind}Dataset" in inside:
            return f"the stage {kind}, which carries something between records"
    if "RepeatDataset" in inside:
        return f"a repeat in a function of the stage {stage.kind}"
    if any(map(_pairs_at_random, stage.graphs)):
        return f"a zip in other orders, in a function of the stage {stage.kind}"
    if stage.kind == "Window":
        size, shift = (int(getattr(stage.dataset, x)) for x in _NUMBERS[-2:])
        if shift < size:
            return "windows that overlap, so that a record is in several"
    return None


def _pairs_at_random(graph: Any) -> bool:
    """Whether a function of data sets zips some that it shuffles."""
    for operation in graph.get_operations():
        left = [operation] if operation.type == "ZipDataset" else []
        while left:
            each = left.pop()
            if any(kind in each.type for kind in _MOVING):
                return True
            left += [x.op for x in each.inputs]
    return False


def _mixed(stage: Stage, *, once: bool) -> str | None:
    before = stage.with_records
    if len(before) < 2:
        return None
    if stage.kind == "Zip":
        orders = {each.order() for each in before}
        if None in orders or len(orders) > 1:
            return (
                "a zip of data sets with records in different orders, so that "
                "a row has parts of two records"
            )
    elif once or not stage.is_batched:
        uses = stage.sources()
        sources = [source for source, _ in uses]
        if any(whole and sources.count(x) > 1 for x, whole in uses):
            return f"the stage {stage.kind}, which takes the same records twice"
    return None


def check_holds_no_records(
    graphs: Iterable[Any], known: Iterable[int], name: str
) -> None:
    """Raises if functions hold an array with a row for each record.

    `known` are numbers of records that there may be.
    """
    for graph in graphs:
        for rows in rows_held_by(graph).intersection(known):
            raise refusal(
                name,
                f"a function that holds an array of {rows:,} rows, as many as "
                "there are records",
            )


def refusal(name: str, what: str) -> PrivateTrainingError:
    """Returns the refusal of something that mixes records."""
    return PrivateTrainingError(
        f"`{name}` must have rows that come from one record each, or one "
        f"record would move the gradients of others. Received: {what}. Leave "
        "it out. Change records one by one, by map=... or augment=..., and "
        "make the values that a record needs a part of the record."
    )


def rows_held_by(graph: Any) -> set[int]:
    """Returns the lengths of the arrays that a function holds or reads."""
    held = [outer for outer, _ in graph.captures] + list(graph.variables)
    shapes = [list(each.shape or ()) for each in held]
    for node in _nodes(graph):
        if node.op == "Const":
            dims = node.attr["value"].tensor.tensor_shape.dim
            shapes.append([dim.size for dim in dims])
    return {
        shape[0]
        for shape in shapes
        if shape and (shape[0] or 0) >= _FEWEST_ROWS
    }


def kinds_in(graph: Any) -> set[str]:
    """Returns the operations of a function, without their versions."""
    return {re.sub(r"V\d+$", "", node.op) for node in _nodes(graph)}


def _nodes(graph: Any) -> list[Any]:
    """Returns the nodes of a function and of those that it calls."""
    definition = graph.as_graph_def()
    library = definition.library.function
    return [*definition.node, *(x for each in library for x in each.node_def)]
