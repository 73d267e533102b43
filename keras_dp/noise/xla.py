"""Formulas over lanes of words, and loops of them that XLA compiles on CPUs.

A formula over lanes takes an `Arithmetic` and values that add, multiply and
combine bits by Python's operators. These are tensors. With `TextArithmetic`
they are names in the text of a StableHLO function, so that the same formula
becomes the body of one loop. With `ArrayArithmetic` they are arrays of NumPy.

XLA compiles one loop per result, so the 16 words of a block would repeat all
rounds 16 times. A window reduction of several operands is one loop with
as many results, which LLVM vectorizes. Its windows hold one element, so that
its body is called once an element, with what all lanes share as the initial
values. StableHLO lets an implementation assume more of a body than holds here:
therefore `streams` uses kernels on CPUs only, and only after it has seen that
they compute what NumPy does. They make a training step of a dense
model up to twice as fast.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp._override import override
from keras_dp.keras_internals import xla_call_module

# uint32, float32 or float64: tensors, or names in a text.
Lanes = Any


class Arithmetic:
    """The operations of formulas beside `+`, `-`, `*`, `&`, `|` and `^`.

    Here they are those of tensors.
    """

    def shifted_left(self, words: Lanes, bits: int) -> Lanes:
        """Returns words times a power of two, modulo `2^32`."""
        return tf.bitwise.left_shift(words, tf.constant(bits, tf.uint32))

    def shifted_right(self, words: Lanes, bits: int) -> Lanes:
        """Returns words divided by a power of two, rounded down."""
        return tf.bitwise.right_shift(words, tf.constant(bits, tf.uint32))

    def float_of_bits(self, words: Lanes) -> Lanes:
        """Returns the float32 that has these bits."""
        return tf.bitcast(words, tf.float32)

    def bits_of_float(self, values: Lanes) -> Lanes:
        """Returns the bits of float32."""
        return tf.bitcast(values, tf.uint32)

    def as_double(self, words: Lanes) -> Lanes:
        """Returns words as float64, exactly."""
        return tf.cast(words, tf.float64)

    def as_signed_double(self, words: Lanes) -> Lanes:
        """Returns words taken as two's complement as float64, exactly."""
        return tf.cast(tf.bitcast(words, tf.int32), tf.float64)

    def widened(self, values: Lanes) -> Lanes:
        """Returns float32 as float64, exactly."""
        return tf.cast(values, tf.float64)

    def narrowed(self, values: Lanes) -> Lanes:
        """Returns the float32 nearest to float64."""
        return tf.cast(values, tf.float32)

    def bits_of_rounded(self, values: Lanes) -> Lanes:
        """Returns the bits of the int32 nearest to float64."""
        return tf.bitcast(tf.cast(tf.round(values), tf.int32), tf.uint32)

    def off_grid(self, values: Lanes) -> Lanes:
        """Returns the distance of float64 from the nearest integer."""
        return tf.abs(values - tf.round(values))

    def maximum(self, one: Lanes, other: Lanes) -> Lanes:
        """Returns the larger value."""
        return tf.maximum(one, other)

    def square_root(self, values: Lanes) -> Lanes:
        """Returns the square root, of values >= 0."""
        return tf.sqrt(values)

    def where_bit(self, words: Lanes, one: Lanes, zero: Lanes) -> Lanes:
        """Returns `one` where a word is not 0, else `zero`."""
        return tf.where(words != tf.constant(0, tf.uint32), one, zero)


class ArrayArithmetic(Arithmetic):
    """Arithmetic of NumPy's arrays, which have at least one axis."""

    def word(self, value: int) -> Lanes:
        """Returns a constant of uint32."""
        return np.array([value], np.uint32)

    @override
    def shifted_left(self, words: Lanes, bits: int) -> Lanes:
        return words << np.uint32(bits)

    @override
    def shifted_right(self, words: Lanes, bits: int) -> Lanes:
        return words >> np.uint32(bits)

    @override
    def float_of_bits(self, words: Lanes) -> Lanes:
        return words.view(np.float32)

    @override
    def bits_of_float(self, values: Lanes) -> Lanes:
        return values.view(np.uint32)

    @override
    def as_double(self, words: Lanes) -> Lanes:
        return words.astype(np.float64)

    @override
    def as_signed_double(self, words: Lanes) -> Lanes:
        return words.view(np.int32).astype(np.float64)

    @override
    def widened(self, values: Lanes) -> Lanes:
        return values.astype(np.float64)

    @override
    def narrowed(self, values: Lanes) -> Lanes:
        return values.astype(np.float32)

    @override
    def bits_of_rounded(self, values: Lanes) -> Lanes:
        return np.rint(values).astype(np.int32).view(np.uint32)

    @override
    def off_grid(self, values: Lanes) -> Lanes:
        return np.abs(values - np.rint(values))

    @override
    def maximum(self, one: Lanes, other: Lanes) -> Lanes:
        return np.maximum(one, other)

    @override
    def square_root(self, values: Lanes) -> Lanes:
        return np.sqrt(values)

    @override
    def where_bit(self, words: Lanes, one: Lanes, zero: Lanes) -> Lanes:
        return np.where(words != 0, one, zero)


class Name:
    """A value in the text of a function: its name and element type."""

    def __init__(self, text: "TextArithmetic", name: str, kind: str) -> None:
        self.text, self.name, self.kind = text, name, kind

    def __add__(self, other: "Name | float") -> "Name":
        return self.text.combined("add", self, other)

    def __sub__(self, other: "Name | float") -> "Name":
        return self.text.combined("subtract", self, other)

    def __mul__(self, other: "Name | float") -> "Name":
        return self.text.combined("multiply", self, other)

    def __truediv__(self, other: "Name | float") -> "Name":
        return self.text.combined("divide", self, other)

    def __and__(self, other: "Name | float") -> "Name":
        return self.text.combined("and", self, other)

    def __or__(self, other: "Name | float") -> "Name":
        return self.text.combined("or", self, other)

    def __xor__(self, other: "Name | float") -> "Name":
        return self.text.combined("xor", self, other)

    __radd__, __rmul__ = __add__, __mul__


class TextArithmetic(Arithmetic):
    """Arithmetic that writes StableHLO, a line an operation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[tuple[str, str], Name] = {}

    def word(self, value: int) -> Name:
        """Writes a constant of uint32."""
        return self._constant(value, "ui32")

    def combined(self, verb: str, one: Name, two: Name | float) -> Name:
        """Writes an operation on two values of one type."""
        other = self._named(two, one.kind)
        return self._written(
            f"stablehlo.{verb} {one.name}, {other.name} : tensor<{one.kind}>",
            one.kind,
        )

    @override
    def shifted_left(self, words: Name, bits: int) -> Name:
        return self.combined("shift_left", words, bits)

    @override
    def shifted_right(self, words: Name, bits: int) -> Name:
        return self.combined("shift_right_logical", words, bits)

    @override
    def float_of_bits(self, words: Name) -> Name:
        return self._converted("bitcast_convert", words, "f32")

    @override
    def bits_of_float(self, values: Name) -> Name:
        return self._converted("bitcast_convert", values, "ui32")

    @override
    def as_double(self, words: Name) -> Name:
        return self._converted("convert", words, "f64")

    @override
    def as_signed_double(self, words: Name) -> Name:
        signed = self._converted("bitcast_convert", words, "i32")
        return self._converted("convert", signed, "f64")

    @override
    def widened(self, values: Name) -> Name:
        return self._converted("convert", values, "f64")

    @override
    def narrowed(self, values: Name) -> Name:
        return self._converted("convert", values, "f32")

    @override
    def off_grid(self, values: Name) -> Name:
        distance = values - self._rounded(values)
        return self._written(
            f"stablehlo.abs {distance.name} : tensor<f64>", "f64"
        )

    @override
    def maximum(self, one: Name, other: Name) -> Name:
        return self.combined("maximum", one, other)

    def _rounded(self, values: Name) -> Name:
        return self._written(
            f"stablehlo.round_nearest_even {values.name} : tensor<f64>", "f64"
        )

    @override
    def bits_of_rounded(self, values: Name) -> Name:
        nearest = self._rounded(values)
        whole = self._converted("convert", nearest, "i32")
        return self._converted("bitcast_convert", whole, "ui32")

    @override
    def square_root(self, values: Name) -> Name:
        return self._written(
            f"stablehlo.sqrt {values.name} : tensor<{values.kind}>", values.kind
        )

    @override
    def where_bit(self, words: Name, one: Name, zero: Name | float) -> Name:
        zero = self._named(zero, one.kind)
        none = self._constant(0, "ui32")
        is_set = self._written(
            f"stablehlo.compare NE, {words.name}, {none.name} : "
            "(tensor<ui32>, tensor<ui32>) -> tensor<i1>",
            "i1",
        )
        return self._written(
            f"stablehlo.select {is_set.name}, {one.name}, {zero.name} : "
            f"tensor<i1>, tensor<{one.kind}>",
            one.kind,
        )

    def _named(self, value: Name | float, kind: str) -> Name:
        return value if isinstance(value, Name) else self._constant(value, kind)

    def _converted(self, verb: str, value: Name, kind: str) -> Name:
        return self._written(
            f"stablehlo.{verb} {value.name} : "
            f"(tensor<{value.kind}>) -> tensor<{kind}>",
            kind,
        )

    def _constant(self, value: float, kind: str) -> Name:
        if kind in {"f32", "f64"}:
            packed = struct.pack(">f" if kind == "f32" else ">d", value)
            literal = f"0x{packed.hex().upper()}"
        else:
            literal = str(int(value))
        if (literal, kind) not in self._constants:
            self._constants[literal, kind] = self._written(
                f"stablehlo.constant dense<{literal}> : tensor<{kind}>", kind
            )
        return self._constants[literal, kind]

    def _written(self, operation: str, kind: str) -> Name:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {operation}")
        return Name(self, name, kind)


@functools.cache
def compiled(
    function: Callable[..., Any], *configuration: Any, kinds: Any = None
) -> Callable[..., Any]:
    """Returns a function of tensors, which XLA compiles once for all graphs.

    It takes what follows the configuration. Tensors of other `kinds`, such as
    sizes and dtypes, have a function of their own, so that none is traced
    again. XLA would compile it twice if it were called both eagerly and in a
    graph. So it is always called in a graph.
    """
    del kinds
    core = tf.function(
        functools.partial(function, *configuration),
        jit_compile=True,
        autograph=False,
    )
    return tf.function(lambda *given: core(*given), autograph=False)


# Takes the number of a lane and what all lanes share. The arithmetic has words.
Body = Callable[
    [TextArithmetic | ArrayArithmetic, Lanes, Sequence[Lanes]], Sequence[Lanes]
]

# The version of the calling convention of modules.
_VERSION = 10


def run(body: Body, lanes: int, shared: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns results `[lanes]` of uint32, in what XLA compiles for a CPU.

    The formula has as many results as there are scalars of uint32 in `shared`.
    A TensorFlow without the operation raises an ImportError.
    """
    width = len(shared)
    results: list[tf.Tensor] = xla_call_module()(
        list(shared),
        version=_VERSION,
        module=module(body, lanes, width),
        Tout=[tf.uint32] * width,
        Sout=[[lanes]] * width,
        platforms=["CPU"],
    )
    return results


def run_by_numpy(
    body: Body, lanes: int, shared: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns what `run` should, computed by NumPy."""
    words = [np.array([word], np.uint32) for word in shared]
    lane = np.arange(lanes, dtype=np.uint32)
    results = body(ArrayArithmetic(), lane, words)
    return [tf.constant(np.broadcast_to(each, [lanes])) for each in results]


def module(body: Body, lanes: int, width: int) -> str:
    """Returns the text of a StableHLO module."""
    text = TextArithmetic()
    shared = [Name(text, f"%shared{i}", "ui32") for i in range(width)]
    results = body(text, Name(text, "%lane0", "ui32"), shared)
    word, words = "tensor<ui32>", f"tensor<{lanes}xui32>"

    def listed(item: str) -> str:
        return ", ".join(item.replace("#", str(i)) for i in range(width))

    return f"""module @lanes {{
func.func public @main({listed(f"%first#: {word}")}) -> ({listed(words)}) {{
%lanes = stablehlo.iota dim = 0 : {words}
%r:{width} = "stablehlo.reduce_window"(
    {listed("%lanes")}, {listed("%first#")}) ({{
^bb0({listed(f"%shared#: {word}")}, {listed(f"%lane#: {word}")}):
{chr(10).join(text.lines)}
stablehlo.return {", ".join(result.name for result in results)}
    : {listed(word)}
}}) {{window_dimensions = array<i64: 1>}}
    : ({listed(words)}, {listed(word)}) -> ({listed(words)})
return {", ".join(f"%r#{i}" for i in range(width))} : {listed(words)}
}}
}}"""
