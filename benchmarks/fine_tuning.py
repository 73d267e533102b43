"""What a private fine-tuning of KerasHub's backbones costs beside Keras's own.

    python benchmarks/fine_tuning.py [--backbone bert ...] [--size small ...]
        [--way full ...] [--tokens 128 512] [--steps 4] [--turns 3]

Every backbone comes from its constructor, with random weights: nothing is
downloaded. A classifier of its mean features is trained on random data. Ways
to train it:

* `full`: all weights.
* `lora`: all weights are frozen, but those of `enable_lora` on the layers that
  have it, tables excepted, and those of the classifier.
* `int8_lora`: the same after `quantize("int8")`.
* `frozen`: the classifier alone.
* `remat`: all weights, where blocks are computed again in the backward pass.
* `bfloat16`: all weights, under `mixed_bfloat16`.
* `lm`: all weights, with the table of tokens for the logits of the next token.

Each side is a process of its own: `fit` of Keras, `fit` of a private model. The
first turn compiles and is not timed; then both take turns. The time is that of
the processor over all cores, the memory the peak of the process, the first step
the time to the end of the first turn. A way that a backbone does not know, or
that fails, is a row that says why.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from peers.protocol import peak_megabytes, reason

FOLDER = Path(__file__).parent
SIDES = ("keras", "private")
WAYS = ("full", "lora", "int8_lora", "frozen", "remat", "bfloat16", "lm")
VOCABULARY = 8000
CLASSES = 2
RANK = 4


class Size(NamedTuple):
    """How large a backbone is.

    Attributes:
        layers: Blocks of a transformer.
        width: Of its hidden states.
        heads: Of its attention.
        image: Pixels along an image.
        batch: Examples of a step.
    """

    layers: int
    width: int
    heads: int
    image: int
    batch: int


SIZES = {"small": Size(2, 128, 4, 32, 8), "medium": Size(4, 256, 8, 64, 8)}


def _encoder(name: str, size: Size, tokens: int) -> Any:
    import keras_hub

    return getattr(keras_hub.models, name)(
        vocabulary_size=VOCABULARY,
        num_layers=size.layers,
        num_heads=size.heads,
        hidden_dim=size.width,
        intermediate_dim=4 * size.width,
        max_sequence_length=tokens,
        dropout=0.0,
    )


def _t5(size: Size, tokens: int) -> Any:
    import keras_hub

    del tokens
    return keras_hub.models.T5Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=size.layers,
        num_heads=size.heads,
        hidden_dim=size.width,
        intermediate_dim=4 * size.width,
        dropout=0.0,
    )


def _decoder(name: str, size: Size, tokens: int, **options: Any) -> Any:
    import keras_hub

    del tokens
    return getattr(keras_hub.models, name)(
        vocabulary_size=VOCABULARY,
        num_layers=size.layers,
        num_query_heads=size.heads,
        num_key_value_heads=size.heads // 2,
        hidden_dim=size.width,
        intermediate_dim=4 * size.width,
        **options,
    )


def _gemma(size: Size, tokens: int) -> Any:
    head = size.width // size.heads
    return _decoder("GemmaBackbone", size, tokens, head_dim=head)


def _vit(size: Size, tokens: int) -> Any:
    import keras_hub

    del tokens
    return keras_hub.models.ViTBackbone(
        image_shape=(size.image, size.image, 3),
        patch_size=size.image // 8,
        num_layers=size.layers,
        num_heads=size.heads,
        hidden_dim=size.width,
        mlp_dim=4 * size.width,
    )


BACKBONES: dict[str, Callable[[Size, int], Any]] = {
    "bert": functools.partial(_encoder, "BertBackbone"),
    "roberta": functools.partial(_encoder, "RobertaBackbone"),
    "distilbert": functools.partial(_encoder, "DistilBertBackbone"),
    "gpt2": functools.partial(_encoder, "GPT2Backbone"),
    "t5": _t5,
    "gemma": _gemma,
    "llama": functools.partial(_decoder, "LlamaBackbone"),
    "mistral": functools.partial(_decoder, "MistralBackbone"),
    "qwen": functools.partial(_decoder, "QwenBackbone"),
    "vit": _vit,
}
IMAGES = {"vit"}


def _enable_lora(backbone: Any) -> None:
    """Freezes a backbone but for adapters of its kernels."""
    import keras

    backbone.trainable = True
    for layer in backbone._flatten_layers(include_self=False):
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.enable_lora(RANK)
        elif not layer._layers:
            layer.trainable = False


def built(name: str, size: Size, tokens: int, way: str) -> Any:
    """Returns the model of one row."""
    import keras

    if way == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    remat = keras.RematScope if way == "remat" else contextlib.nullcontext
    with remat("full"):
        backbone = BACKBONES[name](size, tokens)
    if way == "int8_lora":
        backbone.quantize("int8")
    if way in ("lora", "int8_lora"):
        _enable_lora(backbone)
    backbone.trainable = way != "frozen" and backbone.trainable
    outputs = backbone.output
    if isinstance(outputs, dict):
        keys = ("sequence_output", "decoder_sequence_output")
        outputs = next(outputs[key] for key in keys if key in outputs)
    if way == "lm":
        logits = backbone.token_embedding(outputs, reverse=True)
        return keras.Model(backbone.input, logits)
    pooled = keras.layers.GlobalAveragePooling1D()(outputs)
    logits = keras.layers.Dense(CLASSES, dtype="float32")(pooled)
    return keras.Model(backbone.input, logits)


def records(
    model: Any, name: str, size: Size, tokens: int, way: str, count: int
) -> Any:
    """Returns random inputs of a model, and labels."""
    generator = np.random.default_rng(0)

    def values(key: str) -> np.ndarray:
        if name in IMAGES:
            shape = (count, size.image, size.image, 3)
            return generator.standard_normal(shape, np.float32)
        if key.endswith("token_ids"):
            return generator.integers(1, VOCABULARY, (count, tokens), np.int32)
        filled = 0 if key == "segment_ids" else 1
        return np.full((count, tokens), filled, np.int32)

    labels = generator.integers(0, CLASSES, count, np.int32)
    if not isinstance(model.input, dict):
        return values(""), labels
    inputs = {key: values(key) for key in model.input}
    if way == "lm":
        labels = np.roll(inputs["token_ids"], -1, axis=1)
    return inputs, labels


def serve(options: argparse.Namespace) -> None:
    """Answers with a turn of one side for each line read."""
    import keras

    import keras_dp

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    size = SIZES[options.size[0]]
    tokens, name = options.tokens[0], options.backbone[0]
    try:
        way = options.way[0]
        model = built(name, size, tokens, way)
        count = options.steps * size.batch
        x, y = records(model, name, size, tokens, way, count)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained = sum(
            v.value.shape.num_elements() for v in model.trainable_variables
        )
        if options.worker == "private":
            folder = tempfile.mkdtemp()
            ledger = keras_dp.PrivacyLedger.open(
                Path(folder) / "steps.ledger", dataset="synthetic"
            )
            query = keras_dp.GaussianAverageQuery(
                1.0, 1.0, denominator=size.batch
            )
            model = keras_dp.PrivateModel(model)
            model.compile(
                keras_dp.optimizers.DPAdam(1e-4, query=query, ledger=ledger),
                loss,
            )
        else:
            model.compile(keras.optimizers.Adam(1e-4), loss)
        start = time.process_time()
        model.fit(x, y, batch_size=size.batch, verbose=0)
        answer(first=time.process_time() - start, parameters=trained)
        for _ in sys.stdin:
            start = time.process_time()
            model.fit(x, y, batch_size=size.batch, verbose=0)
            seconds = (time.process_time() - start) / options.steps
            answer(seconds=seconds, peak=peak_megabytes())
    except Exception as error:
        answer(error=reason(error))
        raise SystemExit(1) from error


class Side:
    """A process that trains one side of a row."""

    def __init__(self, side: str, row: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, *row],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
        )
        self.first = self._answer()

    def turn(self) -> dict[str, Any]:
        """Returns the seconds of a step, and the peak so far."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        found = json.loads(line) if line else {"error": "the process died"}
        if "error" in found:
            self.close()
            raise RuntimeError(found["error"])
        return found


def measured(row: list[str], turns: int) -> str:
    """Returns the cells of a row."""
    sides = []
    try:
        for side in SIDES:
            try:
                sides.append(Side(side, row))
            except RuntimeError as error:
                return f" | | | | | | {side}: {str(error)[:120]} |"
        found = [[side.turn() for side in sides] for _ in range(turns)]
    finally:
        for side in sides:
            side.close()
    plain, private = zip(*found, strict=True)
    keras_time, time_ratio = (
        statistics.median(each["seconds"] for each in plain),
        statistics.median(
            two["seconds"] / one["seconds"] for one, two in found
        ),
    )
    peaks = [each[-1]["peak"] for each in (plain, private)]
    firsts = [side.first["first"] for side in sides]
    return (
        f" {sides[0].first['parameters'] / 1e6:.2f} M "
        f"| {1e3 * keras_time:.0f} | {time_ratio:.2f} "
        f"| {peaks[0]:.0f} | {peaks[1] / peaks[0]:.2f} "
        f"| {firsts[0]:.1f} | {firsts[1] / firsts[0]:.2f} |"
    )


def main() -> None:
    """Prints one row for each backbone, size, length and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backbone", nargs="+", choices=BACKBONES, default=list(BACKBONES)
    )
    parser.add_argument("--size", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--way", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--tokens", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options)
        return
    print(
        "| backbone | size | tokens | way | trained | Keras CPU ms | time "
        "| Keras MB | memory | Keras first s | first |"
    )
    print("| --- " * 11 + "|")
    for name in options.backbone:
        lengths = options.tokens[:1] if name in IMAGES else options.tokens
        for size in options.size:
            for tokens in lengths:
                for way in options.way:
                    row = ["--backbone", name, "--size", size, "--way", way]
                    row += ["--tokens", str(tokens)]
                    row += ["--steps", str(options.steps)]
                    length = "" if name in IMAGES else f"{tokens}"
                    print(
                        f"| {name} | {size} | {length} | {way} "
                        f"|{measured(row, options.turns)}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
