"""Every class of `keras.layers`, and how its gradients follow per example.

`python -m tests.layer_table` writes `docs/layers.md`.
"""

import functools
import inspect
import pathlib
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import layers

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "layers.md"

RULE = "rule"
FALLBACK = "fallback"
REFUSED = "refused"
SIGNAL = (6, 3)
IMAGE = (5, 5, 4)
VOLUME = (4, 4, 4, 2)
IDS = ((3,), "int32")
FRAMES = (3, 5, 5, 2)


class Case(NamedTuple):
    """A layer with trainable weights.

    Attributes:
        make: The layer.
        how: `RULE`, `FALLBACK` or `REFUSED`.
        remark: What to know, or the remedy.
        shapes: Of its inputs; with a type where they are not floats.
        call: Calls it, if not with its inputs.
        after: What is done with it once it is built.
        compiles: Whether XLA compiles the layer itself.
    """

    make: Callable[[], keras.Layer]
    how: str
    remark: str
    shapes: tuple[Any, ...] = (SIGNAL,)
    call: Callable[..., Any] | None = None
    after: Callable[[keras.Layer], None] | None = None
    compiles: bool = True


def _lora(layer: keras.Layer) -> None:
    layer.enable_lora(2)


def _quantize(mode: str) -> Callable[[keras.Layer], None]:
    return lambda layer: layer.quantize(mode)


def _quantize_and_adapt(layer: keras.Layer) -> None:
    layer.quantize("int8")
    layer.enable_lora(2)


def _of_two(layer: keras.Layer, query: Any, value: Any) -> Any:
    return layer([query, value])


def _reversed(layer: keras.Layer, ids: Any) -> Any:
    return layer(keras.ops.tanh(layer(ids)), reverse=True)


def _one_step(states: int) -> Callable[..., Any]:
    def call(cell: keras.Layer, inputs: Any) -> Any:
        state = keras.ops.tanh(inputs)
        return cell(inputs, [state] * states)[0]

    return call


def _half_step(cell: keras.Layer, inputs: Any) -> Any:
    state = keras.ops.tanh(inputs)
    return cell(inputs, [[state], [state]])[0]


_CONVOLUTION = "All of padding, strides, dilation, groups, data format."
_RECURRENT = (
    "All options, masks and first states, `dropout` too. `stateful=True` is "
    "refused; `recurrent_dropout` takes a loop over examples: use `dropout`."
)
_CELL = "Fast inside of `RNN` or of the layer of its name."
_DIVIDED = "By the rules of the layers inside."
_SLOW_LOOP = "One example at a time with XLA."
_READ = "From the graph of its call, as fast as by a rule."
_LOW_RANK = "The frozen kernel costs nothing."

# Keyed by class name, with what is done to the layer behind a comma.
CASES = {
    "AdditiveAttention": Case(
        layers.AdditiveAttention,
        FALLBACK,
        "Its one vector `scale`; `use_scale=False` has no weights.",
        (SIGNAL, SIGNAL),
        _of_two,
    ),
    "Attention": Case(
        lambda: layers.Attention(use_scale=True),
        FALLBACK,
        "Only with `use_scale=True`; else it has no weights.",
        (SIGNAL, SIGNAL),
        _of_two,
    ),
    "BatchNormalization": Case(
        layers.BatchNormalization,
        REFUSED,
        "Release its statistics with `compile(..., batch_statistics=...)`; "
        "or use `GroupNormalization`; or freeze it.",
        (IMAGE,),
    ),
    "Bidirectional": Case(
        lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        RULE,
        _DIVIDED,
    ),
    "Conv2D, LoRA": Case(
        lambda: layers.Conv2D(3, 2),
        FALLBACK,
        "Also `Conv1D`, `Conv3D`.",
        (IMAGE,),
        after=_lora,
    ),
    "ConvLSTM1D": Case(
        lambda: layers.ConvLSTM1D(2, 2), FALLBACK, _SLOW_LOOP, ((3, 5, 2),)
    ),
    "ConvLSTM2D": Case(
        lambda: layers.ConvLSTM2D(2, 2), FALLBACK, _SLOW_LOOP, (FRAMES,)
    ),
    "ConvLSTM3D": Case(
        lambda: layers.ConvLSTM3D(2, 2),
        FALLBACK,
        _SLOW_LOOP,
        ((2, 3, 3, 3, 2),),
    ),
    "Dense": Case(lambda: layers.Dense(3), RULE, "Of any rank."),
    "Dense, LoRA": Case(lambda: layers.Dense(3), RULE, _LOW_RANK, after=_lora),
    "Dense, int8": Case(
        lambda: layers.Dense(3),
        RULE,
        "Only its bias is trained.",
        after=_quantize("int8"),
    ),
    "Dense, int8 and LoRA": Case(
        lambda: layers.Dense(3), RULE, _LOW_RANK, after=_quantize_and_adapt
    ),
    "Dense, float8": Case(
        lambda: layers.Dense(3),
        REFUSED,
        "Its scales would be statistics of a batch. Compute in bfloat16, or "
        "train LoRA after int8.",
        after=_quantize("float8"),
    ),
    "EinsumDense": Case(
        lambda: layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d"),
        RULE,
        "Where every axis is contracted, created, shared or the kernel's own; "
        "else the fallback.",
    ),
    "EinsumDense, LoRA": Case(
        lambda: layers.EinsumDense("abc,cd->abd", (None, 4)),
        RULE,
        _LOW_RANK,
        after=_lora,
    ),
    "Embedding": Case(
        lambda: layers.Embedding(7, 3),
        RULE,
        "Updates of rows; no gradient of the size of the table per example.",
        (IDS,),
    ),
    "Embedding, LoRA": Case(
        lambda: layers.Embedding(7, 3), RULE, _LOW_RANK, (IDS,), after=_lora
    ),
    "GRU": Case(lambda: layers.GRU(3), RULE, _RECURRENT),
    "GRUCell": Case(
        lambda: layers.GRUCell(3), FALLBACK, _CELL, ((3,),), _one_step(1)
    ),
    "GroupNormalization": Case(
        lambda: layers.GroupNormalization(2), FALLBACK, _READ, (IMAGE,)
    ),
    "GroupedQueryAttention": Case(
        lambda: layers.GroupQueryAttention(2, 4, 2),
        RULE,
        _DIVIDED,
        (SIGNAL, SIGNAL),
    ),
    "LSTM": Case(lambda: layers.LSTM(3), RULE, _RECURRENT),
    "LSTMCell": Case(
        lambda: layers.LSTMCell(3), FALLBACK, _CELL, ((3,),), _one_step(2)
    ),
    "LayerNormalization": Case(
        layers.LayerNormalization, FALLBACK, f"{_READ} Not over the batch axis."
    ),
    "MultiHeadAttention": Case(
        lambda: layers.MultiHeadAttention(2, 3),
        RULE,
        _DIVIDED,
        (SIGNAL, SIGNAL),
    ),
    "PReLU": Case(
        layers.PReLU, FALLBACK, f"{_READ} As a layer of its own.", (IMAGE,)
    ),
    "Dense, PReLU inside": Case(
        lambda: layers.Dense(3, activation=layers.PReLU()),
        FALLBACK,
        "Call the activation as a layer of its own.",
    ),
    "RMSNormalization": Case(layers.RMSNormalization, FALLBACK, _READ),
    "RNN": Case(
        lambda: layers.RNN(layers.GRUCell(3)),
        RULE,
        "Of one `LSTMCell`, `GRUCell` or `SimpleRNNCell`; else the fallback.",
    ),
    "RNN, stacked": Case(
        lambda: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
        FALLBACK,
        "Stack layers instead of cells.",
    ),
    "ReversibleEmbedding": Case(
        lambda: layers.ReversibleEmbedding(7, 3),
        RULE,
        "The table may look rows up and project, in one model: no gradient of "
        "its size per example.",
        (IDS,),
        _reversed,
    ),
    "STFTSpectrogram": Case(
        lambda: layers.STFTSpectrogram(
            frame_length=4, frame_step=2, fft_length=4
        ),
        FALLBACK,
        "Its filters are trained; `trainable=False` keeps them.",
        ((12, 1),),
    ),
    "SimpleRNN": Case(lambda: layers.SimpleRNN(3), RULE, _RECURRENT),
    "SimpleRNNCell": Case(
        lambda: layers.SimpleRNNCell(3), FALLBACK, _CELL, ((3,),), _one_step(1)
    ),
    "SpectralNormalization": Case(
        lambda: layers.SpectralNormalization(layers.Dense(3)),
        REFUSED,
        "It writes to its weights while it is called. Bound the weights with "
        "a constraint, or freeze it.",
    ),
    "StackedRNNCells": Case(
        lambda: layers.StackedRNNCells(
            [layers.SimpleRNNCell(3), layers.SimpleRNNCell(3)]
        ),
        FALLBACK,
        "Stack layers instead of cells.",
        ((3,),),
        _half_step,
    ),
    "TimeDistributed": Case(
        lambda: layers.TimeDistributed(layers.Dense(3)),
        RULE,
        "Of a layer that has a rule, which then runs once; else the fallback.",
    ),
    "TimeDistributed, model": Case(
        lambda: layers.TimeDistributed(
            keras.Sequential([layers.Dense(3), layers.Dense(2)])
        ),
        FALLBACK,
        "Distribute each layer of the model instead.",
    ),
}

for _name, _arguments, _remark in (
    ("Conv", (3, 2), _CONVOLUTION),
    ("ConvTranspose", (3, 2), ""),
    ("DepthwiseConv", (2,), ""),
    ("SeparableConv", (3, 2), ""),
):
    for _axes, _shape in enumerate((SIGNAL, IMAGE, VOLUME), 1):
        _kind = _name.replace("Conv", f"Conv{_axes}D")
        if hasattr(layers, _kind):
            _make = functools.partial(getattr(layers, _kind), *_arguments)
            CASES[_kind] = Case(_make, RULE, _remark, (_shape,))

# Classes that are nothing by themselves, or of another framework.
NOT_LAYERS = {"InputSpec", "Layer", "Wrapper", "Pipeline", "InputLayer"}
FOREIGN = {"FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"}
# They combine examples, weights or none; `RandAugment` holds an `Equalization`.
MIXING = {"CutMix", "Equalization", "MixUp", "RandAugment"}


def _alike(names: str, **arguments: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names.split(), arguments)


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "Activation": {"activation": "relu"},
    **_alike("AveragePooling1D AveragePooling2D AveragePooling3D", pool_size=2),
    "CategoryEncoding": {"num_tokens": 3},
    **_alike("CenterCrop RandomCrop Resizing", height=2, width=2),
    "Discretization": {"bin_boundaries": [0.0]},
    "Dot": {"axes": 1},
    **_alike("Dropout AlphaDropout GaussianDropout", rate=0.1),
    **_alike("SpatialDropout1D SpatialDropout2D SpatialDropout3D", rate=0.1),
    "GaussianNoise": {"stddev": 0.1},
    **_alike("HashedCrossing Hashing", num_bins=3),
    "Lambda": {"function": keras.ops.tanh},
    "MaxNumBoundingBoxes": {"max_number": 2},
    "Permute": {"dims": (2, 1)},
    **_alike("RandomBrightness RandomColorDegeneration", factor=0.1),
    **_alike("RandomContrast RandomHue RandomRotation", factor=0.1),
    **_alike("RandomSaturation RandomSharpness", factor=0.1),
    "RandomPosterization": {"factor": 4},
    "RandomTranslation": {"height_factor": 0.1, "width_factor": 0.1},
    "RandomZoom": {"height_factor": 0.1},
    "RepeatVector": {"n": 2},
    "Rescaling": {"scale": 2.0},
    "Reshape": {"target_shape": (-1,)},
}


def classes() -> dict[str, type[keras.Layer]]:
    """Returns the public classes by their own name; aliases are left out."""
    return {
        each.__name__: each
        for _, each in inspect.getmembers(layers, inspect.isclass)
    }


def without_weights() -> list[str]:
    """Returns the classes that no other table names."""
    named = {name.split(",")[0] for name in CASES}
    others = set(classes()) - named - NOT_LAYERS - FOREIGN - MIXING
    return sorted(others)


def make_without_weights(name: str) -> keras.Layer:
    arguments = dict(_ARGUMENTS.get(name, {}))
    if name.startswith("Adaptive"):
        arguments["output_size"] = 2
    return classes()[name](**arguments)


def document() -> str:
    """Returns `docs/layers.md`."""
    rows = [
        f"| {_label(name)} | {case.how} | {case.remark} |"
        for name, case in sorted(CASES.items())
    ]
    return "\n".join(
        [
            _HEAD,
            "| Layer | Gradients | Remarks |",
            "| --- | --- | --- |",
            *rows,
            _listed("Without trained weights", without_weights(), _WEIGHTLESS),
            _listed("Mixing examples", sorted(MIXING), _MIXED),
            _listed("Of other frameworks", sorted(FOREIGN), _OTHERS),
            _listed("No layers to train", sorted(NOT_LAYERS), _NOTHING),
            "",
        ]
    )


def _label(name: str) -> str:
    layer, _, what = name.partition(", ")
    return f"`{layer}`" + (f", {what}" if what else "")


def _listed(title: str, names: list[str], text: str) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    parts = [textwrap.fill(each, 96) for each in (text, f"{listed}.")]
    return "\n\n".join([f"\n## {title}", *parts])


_HEAD = """# Layers

This page says how the per-example gradients of each layer of Keras 3.15 are
computed. `tests/layer_table.py` writes the table, and
`tests/unit/gradients/test_layer_table.py` compares each row with a loop over
single examples, with XLA and without.

* *rule*: the gradients follow from the inputs of the layer and one backward
  pass over the batch. They are built per example only where that is cheapest.
* *fallback*: the layer is called again. The same holds for every layer of your
  own that owns weights, or that calls others on rows that are not the examples.
  Layers without weights, and models or layers that only call others on the
  batch, need nothing.
  * The layer is called on the batch if the graph of its call shows how the
    gradients follow: each weight is added, multiplied or contracted (`+`, `-`,
    `*`, `matmul`, `einsum`), and all other operations are known to keep the
    examples apart. This costs one more forward and backward pass of the layer.
    It fails for weights in loops, in conditions and in functions with a
    gradient of their own, and where axes are named by a tensor, as in a softmax
    along another axis than the last.
  * Else it is called on each example, vectorized. This takes the memory of the
    layer's gradients times the physical batch. One example follows another
    where TensorFlow does not vectorize the call: loops such as
    `keras.ops.scan` and `associative_scan` (reshape what it returns), rows that
    `tf.where` selects and an index puts back, sparse products inside of the
    layer.
* *refused*: training raises `UnsupportedLayerError`, which names the remedy.

`keras_dp.layers.StandardizedConv2D` has a rule for one group of channels. Where
the gradients are not built, as for one tap, its norms are upper bounds: they
keep one direction of each filter in which the gradient is 0.

The graphs of all layers of the table that are not refused prove that examples
are kept apart, for all inputs. So do those of `Dropout`, poolings, resizing,
augmentations and the other layers without weights, except
`ContrastLimitedAdaptiveHistogramEqualization` and `RandomElasticTransform`,
which gather by indices of each example, and `MelSpectrogram`, whose largest
value is that of the whole batch. Of ten models of KerasHub, nine are proven;
the head of BERT that gathers the masked positions is not. For these, for
`tf.map_fn`, and for a `tf.function` that was traced for batches of any length,
`fit` warns that examples were only tested to be apart.

A layer with `trainable = False` costs nothing but its forward pass, and the
backward pass ends at the lowest layer that is trained.
"""
_WEIGHTLESS = (
    "These layers need nothing. Keras's `adapt` of a preprocessing layer is "
    "not private: adapt to public data, or with `keras_dp.preprocessing`."
)
_MIXED = (
    "These layers are refused: each output depends on several examples, so no "
    "clip bounds what one of them changes."
)
_OTHERS = (
    "Their weights are not seen by TensorFlow's gradients, or are not trained."
)
_NOTHING = "Base classes and descriptions; what is built on them is above."


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
