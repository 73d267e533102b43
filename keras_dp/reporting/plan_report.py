"""A plot of a plan: noise per example against batch size.

Matplotlib, the extra `plots`, is imported when a plot is asked for.
"""

from collections.abc import Sequence
from typing import Any

from keras_dp.planning.plan import Plan


def plot_plans(plans: Sequence[Plan]) -> Any:
    """Returns a Matplotlib figure of noise per example against batch size.

    Larger batches need less noise per example for the same target: noise falls
    like the inverse of the batch size as long as the noise multiplier is near
    the least that one release needs, and like its square root when many
    releases add up.

    Args:
        plans: Each becomes a line; at least one.

    Returns:
        A `matplotlib.figure.Figure` of its own: save it with `savefig`. No
        window is opened, and no global state of Matplotlib changes.

    Raises:
        ImportError: Matplotlib is not installed; `pip install keras_dp[plots]`.

    Source: van der Veen et al. (2018), arXiv:1812.02890, Figure 5. We differ
    in scales: both axes are logarithmic.
    """
    if not plans:
        raise ValueError(
            f"`plans` must hold at least one Plan. Received: plans={plans!r}."
        )
    from matplotlib.figure import Figure

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
