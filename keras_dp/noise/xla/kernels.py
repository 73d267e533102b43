"""Loops over lanes that compute many results at once, for XLA on CPUs.

XLA compiles one loop per result, so the 16 words of a block would repeat all
rounds 16 times. A window reduction of several operands is one loop with
as many results, which LLVM vectorizes. Its windows hold one element, so that
its body is called once an element, with what all lanes share as the initial
values. StableHLO lets an implementation assume more of a body than holds here:
therefore `streams` uses kernels on CPUs only, and only after it has seen that
they compute what ordinary operations do. They make a training step of a dense
model up to twice as fast.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_dp.keras_internals import xla_call_module
from keras_dp.noise.xla.arithmetic import Lanes, Name, TextArithmetic

# Takes the number of a lane and what all lanes share.
Body = Callable[[TextArithmetic, Lanes, Sequence[Lanes]], Sequence[Lanes]]

# The version of the calling convention of modules.
_VERSION = 10


def run(body: Body, lanes: int, shared: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns results `[number of results, lanes]` of uint32.

    Must be called in what XLA compiles for a CPU.

    Args:
        body: The formula; it has as many results as `shared` has values.
        lanes: How many.
        shared: Scalars of uint32.

    Raises:
        ImportError: TensorFlow has no operation for it.
    """
    (results,) = xla_call_module()(
        list(shared),
        version=_VERSION,
        module=module(body, lanes, len(shared)),
        Tout=[tf.uint32],
        Sout=[[len(shared), lanes]],
        platforms=["CPU"],
    )
    return results


def module(body: Body, lanes: int, width: int) -> str:
    """Returns the text of a StableHLO module."""
    text = TextArithmetic()
    shared = [Name(text, f"%shared{i}", "ui32") for i in range(width)]
    results = body(text, Name(text, "%lane0", "ui32"), shared)
    word, words = "tensor<ui32>", f"tensor<{lanes}xui32>"
    row, all_rows = f"tensor<1x{lanes}xui32>", f"tensor<{width}x{lanes}xui32>"

    def listed(item: str) -> str:
        return ", ".join(item.replace("#", str(i)) for i in range(width))

    rows = "\n".join(
        f"%row{i} = stablehlo.reshape %r#{i} : ({words}) -> {row}"
        for i in range(width)
    )
    return f"""module @lanes {{
func.func public @main({listed(f"%first#: {word}")}) -> {all_rows} {{
%lanes = stablehlo.iota dim = 0 : {words}
%r:{width} = "stablehlo.reduce_window"(
    {listed("%lanes")}, {listed("%first#")}) ({{
^bb0({listed(f"%shared#: {word}")}, {listed(f"%lane#: {word}")}):
{chr(10).join(text.lines)}
stablehlo.return {", ".join(result.name for result in results)}
    : {listed(word)}
}}) {{window_dimensions = array<i64: 1>}}
    : ({listed(words)}, {listed(word)}) -> ({listed(words)})
{rows}
%all = stablehlo.concatenate {listed("%row#")}, dim = 0
    : ({listed(row)}) -> {all_rows}
return %all : {all_rows}
}}
}}"""
