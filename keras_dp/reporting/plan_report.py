"""Plots plans: noise per example against batch size.

Matplotlib, the extra `plots`, is imported when a plot is drawn.
"""

from collections.abc import Sequence
from typing import Any

from keras_dp.planning.plan import Plan


def plot_plans(plans: Sequence[Plan]) -> Any:
    """Returns a Matplotlib figure of noise per example against batch size.

    For the same target, larger batches need less noise per example. The noise
    falls like the inverse of the batch size if the noise multiplier is near the
    least that one release needs. It falls like the inverse of the square root
    of the batch size if many releases add up.

    Args:
        plans: At least one plan. Each becomes a line.

    Returns:
        A new `matplotlib.figure.Figure`, to be saved with `savefig`. No window
        opens, and no global state of Matplotlib changes.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: `plans` is empty.

    Source: van der Veen et al. (2018), arXiv:1812.02890, Figure 5. Unlike
    there, both axes are logarithmic.
    """
    if not plans:
        raise ValueError(
            f"`plans` must hold at least one Plan. Received: plans={plans!r}. "
            "Make one with keras_dp.planning.plan."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Matplotlib must be installed for plots: "
            "pip install keras_dp[plots]"
        ) from error

    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    for each in plans:
        rows = sorted(each.rows, key=lambda row: row.batch_size)
        axes.loglog(
            [row.batch_size for row in rows],
            [row.noise_per_example for row in rows],
            marker="o",
            label=_label(each),
        )
    axes.set_xlabel("batch size (expected records in a sample)")
    axes.set_ylabel("noise per example (stddev / clip bound)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    return figure


def _label(each: Plan) -> str:
    epochs = "1 epoch" if each.epochs == 1 else f"{each.epochs:,} epochs"
    return (
        f"{each.population_size:,} records, {epochs}, "
        f"ε ≤ {each.target_epsilon:g} at δ = {each.delta:g}"
    )
