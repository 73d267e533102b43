"""Private names of Keras and TensorFlow are touched in one file, and exist."""

import ast
import contextlib
import gc
import inspect
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import (
    ArrayDataAdapter,
)

from keras_dp import keras_internals

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "keras_dp" / "keras_internals.py"
FILES = sorted(set((ROOT / "keras_dp").rglob("*.py")) - {HOME})
INTERNAL_MODULES = ("tensorflow.python", "tensorflow.compiler", "keras.src")
OF_NAMED_TUPLES = {"_replace", "_fields", "_asdict", "_field_defaults"}


def _model(*stack):
    model = keras.Sequential(
        [keras.Input((4,)), *stack, keras.layers.Dense(1, name="head")]
    )
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _makes_data_sets_of_arrays(untuned_arrays):
    """The batches are those of Keras's own data set."""
    x, y = np.arange(8.0), np.array([0, 1, 1, 0, 1, 0, 1, 1])
    given = {"x": x, "y": y, "batch_size": 4, "shuffle": False}
    given |= {"class_weight": {0: 1.0, 1: 3.0}, "validation_split": 0.25}
    unknown = {**given, "x": iter([x])}
    assert untuned_arrays(unknown) is unknown

    found = untuned_arrays(given)

    dataset, held_back = found["x"], found["validation_data"]
    batches = [[part.numpy().tolist() for part in each] for each in dataset]
    expected = [(x[:4], y[:4], [1, 3, 3, 1]), (x[4:6], y[4:6], [3, 1])]
    assert batches == [list(map(list, each)) for each in expected]
    assert [list(each) for each in held_back[:2]] == [[6.0, 7.0], [1, 1]]
    assert not found["validation_split"]
    return not dataset.options().autotune.enabled and len(dataset) == 2


_ROWS = np.arange(10.0)
# Inputs, targets and weights.
_ARRAYS = (
    (_ROWS[:, None], _ROWS.astype(int), None),
    ({"a": _ROWS, "b": [np.eye(10)]}, [_ROWS, _ROWS[:, None]], _ROWS),
    (np.array(["a", "b"] * 5, object), {"y": tf.constant(_ROWS)}, None),
)


def _slices_arrays(sliced_arrays):
    """The batches are those of Keras's own data set."""
    for x, y, weight in _ARRAYS:
        for size, steps in [(4, None), (5, None), (20, None), (None, 3)]:
            adapter = ArrayDataAdapter(
                x, y, sample_weight=weight, batch_size=size, steps=steps
            )
            own = adapter.get_tf_dataset()

            found, *rest = sliced_arrays(x, y, weight, size, steps)

            assert rest == [None, None]
            assert found.element_spec == own.element_spec
            assert len(found) == adapter.num_batches
            for batch, expected in zip(found, own, strict=True):
                keras.tree.map_structure(
                    np.testing.assert_array_equal, batch, expected
                )
    dense = _ROWS[:, None]
    others = (iter([dense]), tf.data.Dataset.range(3), tf.sparse.eye(3))
    # Keras says what is wrong with these, once they are evaluated.
    wrong = [
        (dense[1:], 2),
        (dense.astype(object), 2),
        (dense, -3),
        (dense, 2.5),
    ]
    return all(
        sliced_arrays(x, None, None, 2, None)[0] is x for x in others
    ) and all(sliced_arrays(x, dense, None, n, None)[0] is x for x, n in wrong)


def _private_names():
    """Returns the private names of what Keras and TensorFlow hand out."""
    model = _model(keras.layers.Dropout(0.5))
    model._compile_loss(tf.zeros([2, 1]), tf.zeros([2, 1]))
    tensor = tf.zeros([2, 1])
    tensor._keras_mask = tf.ones([2], tf.bool)
    embedding = keras.layers.Embedding(2, 2)
    embedding.build(None)
    handed_out = [
        model,
        model.layers[0],
        model.layers[-1],
        keras.layers.TextVectorization(vocabulary=["word"]),
        embedding,
        model.optimizer,
        model.layers[0].seed_generator,
        model._compile_loss,
        model.variables[0],
        tensor,
        tf.Graph(),
        tf.Variable(0.0),
        tf.distribute.get_strategy(),
    ]
    names = {name for each in handed_out for name in dir(each)}
    return {
        name
        for name in names - OF_NAMED_TUPLES
        if name.startswith("_") and not name.startswith("__")
    }


PRIVATE = _private_names()


def _keras_classes(trees):
    """Returns the names of classes that descend from a class of Keras."""
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"FitHooks"}
    while True:
        more = {
            name
            for name, own in bases.items()
            if any(base.startswith("keras.") or base in found for base in own)
        }
        if more <= found:
            return found
        found |= more


def _assigned_to_self(tree):
    """Returns the names that the classes of a module give their objects."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def foreign(tree, keras_classes):
    """Returns what a module touches of the inside of Keras or TensorFlow."""
    found = []
    own = _assigned_to_self(tree)

    def visit(node, inside_keras):
        if isinstance(node, ast.ClassDef):
            inside_keras = node.name in keras_classes
            if inside_keras:
                found.extend(
                    f"def {each.name}"
                    for each in node.body
                    if isinstance(each, ast.FunctionDef)
                    and each.name in PRIVATE
                )
        elif isinstance(node, ast.ImportFrom):
            if str(node.module).startswith(INTERNAL_MODULES):
                found.append(f"from {node.module}")
        elif isinstance(node, ast.Import):
            found.extend(
                f"import {alias.name}"
                for alias in node.names
                if alias.name.startswith(INTERNAL_MODULES)
            )
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            is_own = ast.unparse(node.value) in ("self", "cls") or (
                isinstance(node.value, ast.Name) and node.attr in own
            )
            if inside_keras or not is_own:
                found.append(ast.unparse(node))
        elif (isinstance(node, ast.Constant) and node.value in PRIVATE) or (
            isinstance(node, ast.keyword) and node.arg in PRIVATE
        ):
            found.append(ast.unparse(node))
        for child in ast.iter_child_nodes(node):
            visit(child, inside_keras)

    visit(tree, inside_keras=False)
    return found


def test_no_other_file_touches_private_names() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    keras_classes = _keras_classes(trees.values())

    touched = {
        path.relative_to(ROOT).as_posix(): names
        for path, tree in trees.items()
        if (names := foreign(tree, keras_classes))
    }

    assert touched == {}


class TestOfTheSearch:
    @pytest.mark.parametrize(
        "source",
        [
            "model._flatten_layers()",
            "getattr(leaf, '_keras_mask', None)",
            "leaf._keras_mask = 1",
            "Instead(layer, _kernel=1)",
            "inner._learning_rate",
            "vars(inner)['_all_reduce_sum_gradients'] = f",
            "def f():\n  from tensorflow.python.eager import context",
            "import keras.src.layers",
            "class A(keras.Model):\n  def f(self):\n    self._compile_loss",
            "class A(keras.Model):\n  def _symbolic_build(self): ...",
            "class A(keras.Model):\n  def f(self):\n    super()._losses",
        ],
    )
    def test_finds_any_touch(self, source) -> None:
        tree = ast.parse(source)

        assert len(foreign(tree, _keras_classes([tree]))) == 1

    @pytest.mark.parametrize(
        "source",
        [
            "pair._replace(a=1)",
            "class A:\n  def f(self):\n    self._losses",
            "class A:\n  def f(self, a):\n    self._losses = a._losses",
            "class A(keras.Model):\n  def f(self):\n    self._own_name",
        ],
    )
    def test_leaves_names_of_our_own_alone(self, source) -> None:
        tree = ast.parse(source)

        assert foreign(tree, _keras_classes([tree])) == []


def _dropped_out():
    cell = keras.layers.GRUCell(1, dropout=0.5, recurrent_dropout=0.5)
    cell(tf.ones([2, 2]), tf.ones([2, 1]), training=True)
    return cell


def _masked():
    tensor = tf.zeros([2, 1])
    keras_internals.set_mask(tensor, "mask")
    return tensor


def _within(function):
    """Returns a layer that returns what a function does while it is called."""

    class Asks(keras.layers.Layer):
        def call(self, x):
            return function()

    return Asks()


def _is_computed_once(without):
    calls = []
    with keras.RematScope("full"):
        layer = keras.layers.Dense(1)
    layer.activation = lambda x: calls.append(x) or x

    def count():
        calls.clear()
        with tf.GradientTape() as tape:
            outputs = layer(tf.ones([1, 1]))
        tape.gradient(outputs, layer.kernel.value)
        return len(calls)

    layer.build((1, 1))
    with without(layer):
        once = count()
    return (once, count()) == (1, 2)


def _keeps_scope(keeping):
    return (
        _caching_device_after(contextlib.nullcontext) is not None
        and _caching_device_after(keeping) is None
    )


def _caching_device_after(context):
    """Returns what a function that raises leaves on the variable scope."""

    def refuses(row):
        raise ValueError("refused")

    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="refused"), context():
            tf.map_fn(refuses, tf.zeros([2]))
        return tf.compat.v1.get_variable_scope().caching_device


def _counts_names(name_counts):
    before = name_counts().get("dense", 0)
    keras.layers.Dense(1)
    return name_counts()["dense"] == before + 1


def _counts_from(counting_names_from):
    before = keras_internals.name_counts()
    generator = keras.src.random.seed_generator.global_seed_generator
    own = generator()
    with counting_names_from({"dense": 3}):
        name, other = keras.layers.Dense(1).name, generator()
    return (
        name == "dense_3"
        and other is not own
        and generator() is own
        and keras_internals.name_counts() == before
    )


def _returns_the_seed(global_seed):
    before = global_seed()
    tf.random.set_seed(17)  # noqa: TID251 - it is what is read.
    found = global_seed()
    tf.random.set_seed(before)  # noqa: TID251
    return found == 17 and global_seed() == before


def _counts_anew(counting_traces_anew):
    from tensorflow.python.eager.polymorphic_function import (
        polymorphic_function,
    )

    manager = polymorphic_function._frequent_tracing_detector_manager
    before = manager._detectors
    with counting_traces_anew():
        tf.function(lambda: tf.zeros([]))()
        inside = manager._detectors
    return inside is not before and manager._detectors is before


def _is_registered(function):
    @tf.function
    def twice(x):
        return 2 * x

    trace = twice.get_concrete_function(tf.TensorSpec([]))
    definition = type(trace.function_def)()
    definition.CopyFrom(trace.function_def)
    definition.signature.name = "registered_for_a_test"
    with function([definition]):
        return len(keras_internals.function_nodes("registered_for_a_test")) > 0


WORKS = {
    "counting_traces_anew": lambda f: _counts_anew(f),
    "replaced_attribute": lambda f: _replaces_and_restores(f),
    "name_counts": lambda f: _counts_names(f),
    "counting_names_from": lambda f: _counts_from(f),
    "global_seed": lambda f: _returns_the_seed(f),
    "is_seed_state": lambda f: (
        f(keras.random.SeedGenerator(1).state)
        and not f(keras.Variable(tf.zeros([2], tf.int64), trainable=False))
    ),
    "training_of_call": lambda f: (
        f() is None and _within(f)(tf.ones([1]), training=True)
    ),
    "without_rematerialization": lambda f: _is_computed_once(f),
    "passes_training_on": lambda f: (
        f(_model()) and not f(keras.Model()) and not f(keras.layers.Flatten())
    ),
    "attributes_of": lambda f: (
        f(keras.layers.Dense(3))["units"] == 3
        and not f(keras.Model())
        and not any(name[0] == "_" for name in f(_dropped_out()))
    ),
    "metric_updates": lambda f: (
        f(_model(), tf.zeros([2, 1]), tf.zeros([2, 1]), None) == []
    ),
    "weighs_rows": lambda f: (
        f(keras.metrics.MeanSquaredError(), tf.zeros([2, 1]), tf.zeros([2, 1]))
        and not any(
            f(metric, tf.zeros(y), tf.zeros([2, 3]))
            for metric, y in [
                (keras.metrics.MeanIoU(2), [2, 3]),
                (keras.metrics.CategoricalCrossentropy(), [2, 3]),
                (keras.metrics.CosineSimilarity(axis=0), [2, 3]),
                (keras.metrics.MeanSquaredError(), [2]),
            ]
        )
    ),
    "mask_of": lambda f: f(_masked()) == "mask" and f(tf.zeros([2])) is None,
    "averages_of": lambda f: _averages(f),
    "optimizers_in": lambda f: _finds_optimizers(f),
    "fresh_copy_of": lambda f: _copies_optimizers(f),
    "python_values": lambda f: (
        f({"b": tf.constant([1.0, 2.0]), "a": tf.constant(1.0)})["a"] == 1.0
    ),
    "print_line": lambda f: f("A line.") is None,
    "gradient_reduction": lambda f: callable(getattr(_model().optimizer, f())),
    "replaced_draws": lambda f: _replaces_draws(f),
    "counting_one_replica": lambda f: _counts_one(f),
    "keeping_variable_scope": lambda f: _keeps_scope(f),
    "eager_operations": lambda f: "Mul" in _seen_by(f),
    "function_nodes": lambda f: "Mul" in _nodes_of_double(f),
    "untuned_arrays": lambda f: _makes_data_sets_of_arrays(f),
    "sliced_arrays": lambda f: _slices_arrays(f),
    "xla_call_module": lambda f: callable(f()),
    "registered_functions": lambda f: _is_registered(f),
    "custom_gradient_of": lambda f: f(_own_gradient()) is not None,
    "rewritten_once": lambda f: _rewrites_once(f),
    "trace_of": lambda f: (
        _is_freed(f)
        and not _is_freed(lambda traced: traced.get_concrete_function())
        and gc.isenabled()
    ),
}


def _replaces_and_restores(replaced):
    layer = keras.layers.Dense(1)
    before = dict(vars(layer))
    with replaced(layer, "call", len), replaced(layer, "units", 2):
        inside = layer.call, layer.units
    return inside == (len, 2) and vars(layer) == before


def _replaces_draws(replaced):
    """Calls of `keras.random` and of layers go through the replacement."""
    names = []

    def draw(name, original, args, options):
        names.append(name)
        return original(*args, **options)

    with replaced(draw):
        keras.random.normal([2], seed=1)
        keras.layers.Dropout(0.5)(tf.ones([2]), training=True)
    keras.random.uniform([2])
    return names == ["normal", "dropout"]


def _counts_one(context):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), context():
        return tf.distribute.get_strategy() is not strategy


def _seen_by(context):
    seen = []
    with context(lambda kind, inputs: seen.append(kind)):
        tf.ones([2]) * 2
    return seen


def _is_freed(trace_of):
    """Whether the operations of a trace are gone when it is."""
    trace = trace_of(tf.function(lambda: tf.constant(1) * 2, autograph=False))
    graph = trace.graph
    del trace
    gc.collect()
    return not graph.get_operations()


def _rewrites_once(rewritten_once):
    """Whether options hold inside a call, and only there."""
    from tensorflow.python.eager import context

    def options():
        return context.context().function_call_options.config_proto_serialized

    before = options()
    return rewritten_once(options)() != before and options() == before


def _own_gradient():
    with tf.Graph().as_default():
        return tf.custom_gradient(lambda x: (x, lambda dy: 2 * dy))(
            tf.constant(1.0)
        ).op


def _nodes_of_double(nodes):
    double = tf.function(lambda x: x * 2)
    name = double.get_concrete_function(tf.ones([2])).name
    return {node.op for node in nodes(name)}


def _is_handed_out(function):
    """Whether a function reads private names, all of which exist."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {
        each.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute)
        and each.attr.startswith("_")
        and not each.attr.startswith("__")
    }
    return bool(names) and names <= PRIVATE


FUNCTIONS = {
    name: value
    for name, value in vars(keras_internals).items()
    if inspect.getmodule(value) is keras_internals and name[0] != "_"
}


def _averages(function):
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    optimizer.build([weight])
    for _ in range(2):  # The first average is the variable itself.
        optimizer.apply([tf.constant([1.0])])
    ((variable, average),) = function(optimizer)
    return variable is weight and float(average[0]) != float(weight[0])


def _holding():
    optimizers = keras.optimizers
    adam, sgd = optimizers.Adam(0.5), optimizers.SGD(lambda: 0.25)
    adam.exclude_from_weight_decay(var_names=["bias"])
    adam.later = lambda: not_yet  # A function that holds nothing so far.
    chosen = optimizers.OptimizerMap(sgd, {".*kernel": adam})
    if sgd.built:
        not_yet = None
    return optimizers.MultiOptimizer(chosen), adam, sgd


def _finds_optimizers(function):
    outer, adam, sgd = _holding()
    return {*map(id, function(outer))} == {id(outer), id(adam), id(sgd)}


def _copies_optimizers(function):
    outer, adam, _ = _holding()
    outer.build([keras.Variable([1.0], name="kernel")])
    copy = function(outer)
    (first, second), weight = copy.optimizers, keras.Variable([1.0])
    copy.build([weight])
    copy.apply([tf.constant([1.0])])
    return (
        float(weight[0]) == 0.75
        and type(first) is type(adam)
        and first is not adam
        and float(function(adam, 2.0).learning_rate) == 2.0
        and float(first.learning_rate) == 0.5
        and not first.built
        and first._exclude_from_weight_decay_pattern is not None
        and second.learning_rate == 0.25
        and int(outer.iterations) == 0
    )


class TestEachName:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_exists(self, name) -> None:
        """The message says what the name is for, and what breaks without.

        Keras and TensorFlow hand out the private names of most functions. The
        others are seen to work.
        """
        function = FUNCTIONS[name]
        works = WORKS.get(name, _is_handed_out)
        try:
            works = works(function)
        except (AttributeError, ImportError) as error:
            works, reason = False, error
        else:
            reason = "it does something else"

        assert works, (
            f"`keras_internals.{name}` does not work with Keras "
            f"{keras.__version__} and TensorFlow {tf.__version__}: {reason}.\n"
            f"{function.__doc__}"
        )

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_is_documented_with_its_version_and_its_use(self, name) -> None:
        text = inspect.getdoc(FUNCTIONS[name])

        assert "Keras 3." in text or "TensorFlow 2." in text
        assert "Without" in text or "without" in text
