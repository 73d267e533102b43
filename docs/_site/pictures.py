"""Draws the pictures of the documents that follow from numbers or ideas.

    python docs/_site/pictures.py

writes SVG files to `docs/images/`, which are readable in light and dark.
"""

from pathlib import Path

import numpy as np

from keras_dp import accountants, planning
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger
from keras_dp.reporting.chart import Axis, Chart, label, picture

IMAGES = Path(__file__).resolve().parents[1] / "images"
# What tutorials/README.md states: epsilon, and accuracy in percent.
MNIST_PAPER = ((0.5, 91.16), (2.0, 95.01), (8.0, 96.92))
MNIST_TUNED = ((0.5, 95.30), (2.0, 97.73), (8.0, 98.19))
# The training whose trade-off curves are drawn.
PROBABILITY, ROUNDS, DELTA = 0.05, 200, 1e-5
LEAST = 1e-4


def main() -> None:
    """Writes every picture."""
    drawn = {
        "trade_off": trade_off(),
        "accuracy": accuracy(),
        "round": one_round(),
        "units": units(),
        "choosing": choosing(),
    }
    for name, svg in drawn.items():
        (IMAGES / f"{name}.svg").write_text(svg + "\n", "utf-8")


def trade_off() -> str:
    """Returns the trade-off curves of three targets."""
    rate = "{} (logarithmic)"
    x = Axis(rate.format("wrongly accused"), LEAST, 1.0, True, is_share=True)
    y = Axis(rate.format("rightly accused"), LEAST, 1.0, True, is_share=True)
    chart = Chart(x, y)
    rates = np.geomspace(LEAST, 1.0, 121)
    chart.line([(rate, rate) for rate in rates], "guess")
    for index, epsilon in enumerate((1.0, 3.0, 8.0)):
        ledger = PrivacyLedger.in_memory(dataset="people", unit="person")
        noise = planning.calibrate_noise(
            target_epsilon=epsilon,
            delta=DELTA,
            sampling_probability=PROBABILITY,
            rounds=ROUNDS,
        )
        gradients = GaussianSum("gradients", 1.0, noise)
        ledger.record(PoissonSampling(PROBABILITY), [gradients], ROUNDS)
        curve = accountants.trade_off(ledger)
        most = curve.largest_true_positive_rate(rates)
        chart.line([*zip(rates, most, strict=True)], f"k{index}")
    chart.legend(["epsilon 1", "epsilon 3", "epsilon 8"])
    chart.note(0.6, LEAST * 1.5, "guessing: dashed", "end")
    return chart.svg(
        "What an attacker can find out of one person at epsilon 1, 3 and 8."
    )


def accuracy() -> str:
    """Returns accuracy on MNIST against epsilon."""
    x = Axis("epsilon (logarithmic)", 0.4, 10.0, True)
    y = Axis("accuracy on MNIST, %", 90.0, 100.0, False)
    chart = Chart(x, y)
    for index, points in enumerate((MNIST_TUNED, MNIST_PAPER)):
        chart.line(points, f"k{index}")
    chart.legend(["a small network, tuned", "settings of Abadi et al."])
    return chart.svg(
        "Accuracy on MNIST: from 91 % at epsilon 0.5 to 98 % at epsilon 8."
    )


def one_round() -> str:
    """Returns the flow of data in one round."""
    steps = [
        ("ledger", "the round is written to disk, before anything else"),
        ("sample", "each record takes part with chance q"),
        ("gradients", "one for each record, by one pass"),
        ("clip", "no record is longer than C"),
        ("sum + noise", "Gaussian noise, z times C"),
        ("divide", "by a public number"),
        ("update", "an ordinary Keras optimizer"),
    ]
    marks, top = [], 14.0
    for index, (name, text) in enumerate(steps):
        secret = index in (1, 2, 3)
        marks.append(_box(16, top, 104, 32, name))
        marks.append(label(134, top + 20, text))
        if secret:
            marks.append(label(426, top + 20, "secret", anchor="end"))
        if index < len(steps) - 1:
            marks.append(_arrow(68, top + 32, top + 46))
        top += 46
    return picture(
        "".join(marks), "The steps of one round, from top to bottom.", top
    )


def units() -> str:
    """Returns what a record, a sample, a round and a ledger are."""
    marks = [label(16, 24, "data set: one dot is one record")]
    taken = {2, 7, 11, 12, 19, 23}
    for index in range(26):
        at = 22 + 16 * index
        kind = "bar" if index in taken else "frame"
        marks.append(f'<circle class="{kind}" cx="{at}" cy="44" r="5"/>')
    marks += [
        _arrow(120, 56, 80),
        label(132, 74, "sample: those that are drawn for this round"),
        _box(16, 84, 408, 34, "round: one sample, and all sums over it"),
        _arrow(120, 118, 142),
        label(132, 136, "recorded before it is computed"),
    ]
    for index in range(4):
        last = index == 3
        text = "round 4" if last else f"round {index + 1}"
        marks.append(_box(16 + 104 * index, 146, 96, 30, text))
    marks += [
        label(16, 200, "ledger: the rounds of all runs on this data set"),
        _arrow(120, 208, 228),
        label(132, 224, "an accountant reads it, when you like"),
        _box(16, 232, 408, 34, "epsilon, with its theorem"),
    ]
    return picture(
        "".join(marks), "Records, a sample, rounds, a ledger, epsilon.", 280
    )


def choosing() -> str:
    """Returns the decisions of a training, in order."""
    steps = [
        ("unit", "whom do you protect?", "person"),
        ("neighbours", "in the data or not, or replaced?", "add or remove"),
        ("epsilon, delta", "what may an attacker find out?", "1 to 8, N^-1.1"),
        ("sampler", "how are records drawn?", "Poisson"),
        ("batch, noise", "which size has the best signal?", "plan"),
        ("clip", "how long is a gradient?", "1"),
        ("mechanism", "which noise, on what?", "Gaussian average"),
        ("accountant", "which bound?", "Fourier"),
    ]
    marks = [
        label(134, 18, "question", kind="soft"),
        label(426, 18, "if unsure", anchor="end", kind="soft"),
    ]
    top = 26.0
    for index, (name, question, answer) in enumerate(steps):
        marks.append(_box(16, top, 104, 30, name))
        marks.append(label(134, top + 19, question))
        marks.append(label(426, top + 19, answer, anchor="end"))
        if index < len(steps) - 1:
            marks.append(_arrow(68, top + 30, top + 42))
        top += 42
    return picture(
        "".join(marks), "Eight decisions, in order, and the usual answer.", top
    )


def _box(x: float, y: float, width: float, height: float, text: str) -> str:
    return (
        f'<rect class="frame" x="{x}" y="{y}" width="{width}" '
        f'height="{height}" rx="5"/>'
        + label(x + width / 2, y + height / 2 + 4, text, anchor="middle")
    )


def _arrow(x: float, top: float, bottom: float) -> str:
    return f'<path class="frame" d="M{x} {top}V{bottom - 2}m-4 -5l4 5l4 -5"/>'


if __name__ == "__main__":
    main()
