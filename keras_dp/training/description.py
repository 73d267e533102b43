"""How a model is trained privately, in lines for a person."""

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras

from keras_dp.gradients import layers_without_rule
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.spending.epsilon_limit import PrivacyTarget

_HOW = {
    "proven": "proven for all inputs, from the graph",
    "tested": "tested on the first batch, not proven",
}


def summary_hash(model: keras.Model) -> str:
    """Returns SHA-256 of a model's summary, which says what was trained."""
    lines: list[str] = []
    model.summary(
        line_length=120, print_fn=lambda text, **_: lines.append(text)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def description_of(
    model: keras.Model,
    optimizer: Any,
    target: PrivacyTarget | None,
    examples_apart: str = "",
    readings: Mapping[str, str] = MappingProxyType({}),
    one_by_one: str | None = None,
) -> Iterator[str]:
    """Yields what a private model's summary adds to the model's own.

    `examples_apart` is that of `EngineCheck`, and `readings` are those of
    `GradientEngine`. `one_by_one` says why the rounds of the last training ran
    one by one, "" if they ran in blocks; it is `None` before the first.
    """
    if isinstance(optimizer, DPOptimizer):
        noise = getattr(optimizer.query, "noise_multiplier", None)
        yield f"Query of the gradients: {optimizer.query!r}"
        if noise is not None:
            yield f"Noise multiplier: {noise:.4g}"
        if optimizer.groups is not None:
            yield f"Groups: {dict(optimizer.groups)!r}"
        yield f"Ledger: {optimizer.ledger!r}"
    else:
        yield "Not compiled with a private optimizer."
    if target is not None:
        yield (
            f"Target: epsilon {target.epsilon:g} at delta = {target.delta:.3g}"
        )
    ways: dict[tuple[str, str], list[str]] = {}
    for layer in layers_without_rule(model) if model.built else []:
        how = readings.get(layer.path, "from its graph, or example by example")
        kind = type(layer).__name__, how
        ways.setdefault(kind, []).append(layer.name)
    for (name, how), (first, *others) in ways.items():
        more = f" and {len(others)} more" if others else ""
        yield f"Gradients of {name} {first}{more}, without a rule: {how}"
    if examples_apart:
        yield f"Examples kept apart: {_HOW[examples_apart]}"
    if one_by_one is not None:
        how = f"one by one, because {one_by_one}" if one_by_one else "in blocks"
        yield f"Rounds: {how}"
