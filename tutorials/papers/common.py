"""Options, data, tables and pictures of the scripts in this folder."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

# The scripts one folder up: networks and mechanisms come from there.
sys.path.append(str(Path(__file__).resolve().parents[1]))

QUICK_RECORDS = 2000


class Images(NamedTuple):
    """Digits `[n, 28, 28]` with pixels in [0, 1], and their labels `[n]`."""

    x: np.ndarray
    y: np.ndarray


def read_options(
    description: str | None, file: str = "mnist.npz"
) -> argparse.Namespace:
    """Returns the options that every script has.

    Args:
        description: What `--help` prints.
        file: The name of the data, in the folder `$KERAS_DP_DATA`.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help=file)
    parser.add_argument("--quick", action="store_true", help="takes seconds")
    name = Path(sys.argv[0]).stem
    parser.add_argument("--out", type=Path, default=Path("out") / name)
    options = parser.parse_args()
    if options.data is None and "KERAS_DP_DATA" in os.environ:
        options.data = Path(os.environ["KERAS_DP_DATA"]) / file
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def load_mnist(options: argparse.Namespace) -> tuple[Images, Images]:
    """Returns the training and test images; fewer of them for `--quick`."""
    if options.data is None:
        raise SystemExit(
            "MNIST is missing: pass --data mnist.npz, or name a folder that "
            "has it in $KERAS_DP_DATA."
        )
    count = QUICK_RECORDS if options.quick else None
    with np.load(options.data) as file:
        return (
            Images(
                file["x_train"][:count].astype(np.float32) / 255,
                file["y_train"][:count].astype(np.int32),
            ),
            Images(
                file["x_test"][:count].astype(np.float32) / 255,
                file["y_test"][:count].astype(np.int32),
            ),
        )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of text, in columns as wide as they need to be."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def draw_bars(
    bars: dict[str, dict[str, float]], ylabel: str, title: str, to: Path
) -> None:
    """Draws a group of bars for each name; values are percentages.

    Args:
        bars: From the name of a group to its values, by the name of a series.
        ylabel: Label of the axis.
        title: Title of the picture.
        to: Path of the picture.
    """
    series = list(dict.fromkeys(name for row in bars.values() for name in row))
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    width = 0.8 / len(series)
    for number, name in enumerate(series):
        values = [row.get(name, np.nan) for row in bars.values()]
        places = np.arange(len(bars)) + (number - (len(series) - 1) / 2) * width
        drawn = axes.bar(places, values, width, label=name)
        axes.bar_label(drawn, fmt="%.1f", fontsize=7)
    known = [value for row in bars.values() for value in row.values()]
    axes.set_ylim(max(0.0, min(known) - 5), max(known) + 2)
    axes.set_xticks(range(len(bars)), list(bars), fontsize=8)
    axes.set(ylabel=ylabel, title=title)
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=len(series))
    figure.savefig(to, dpi=150)
    plt.close(figure)
    print(f"Picture: {to}")
