"""Compares planned trainings of several batch sizes, in a table."""

import dataclasses
from collections.abc import Iterator

from keras_dp.accountants.claim import rounded_up
from keras_dp.planning.plan import ENOUGH, FEWEST_STEPS, PlannedTrainings
from keras_dp.reporting.document import Code, Document, Part, Table, Text

_COLUMNS = (
    *("batch size", "probability", "steps", "noise multiplier"),
    *("noise/example", "signal", "epsilon", "physical batch", ""),
)


def plan_document(
    plans: PlannedTrainings, *, ledger: str | None = None
) -> Document:
    """Returns plans as a table, with the batch size to take.

    The signal is a share of the largest. Epsilons and noise multipliers are
    rounded up, so that a number that is copied meets the target. The target
    itself is not rounded.

    Args:
        plans: The result of `planning.plan`.
        ledger: The name of the file whose rounds it counted; `None` for none.

    >>> from keras_dp.accountants import RDP
    >>> from keras_dp.planning import plan
    >>> print(plan_document(plan(
    ...     60_000, target_epsilon=2.0, delta=1e-5, epochs=10,
    ...     batch_sizes=[64, 256, 1024], accountant=RDP())))
    60,000 records, 10 epochs, epsilon <= 2.0 at delta = 1e-05 (add ...
      batch size  probability  steps  noise multiplier  noise/example  ...
              64     0.001067  9,380            ...
             256     0.004267  2,340            ...
           1,024      0.01707    590            ...  <-- take
    <BLANKLINE>
    Take 1,024: of the sizes with 100 steps or more, ...
    ...
    """
    title = (
        f"{plans.population_size:,} records, {plans.epochs:,} epochs, epsilon "
        f"<= {plans.target_epsilon!r} at delta = {plans.delta!r} "
        f"({plans.neighbours.replace('_', ' ')}) by {plans.accountant}"
    )
    if ledger is not None:
        title += f", for all rounds of {ledger} and these"
    best = max(row.signal for row in plans.rows)
    rows = tuple(
        (
            f"{row.batch_size:,}",
            f"{row.sampling_probability:.4g}",
            f"{row.steps:,}",
            rounded_up(row.noise_multiplier),
            f"{row.noise_per_example:.3g}",
            f"{row.signal / best:.0%}",
            rounded_up(row.epsilon),
            f"{row.physical_batch_size:,}",
            "<-- take" * (row is plans.recommended),
        )
        for row in plans.rows
    )
    last = len(_COLUMNS) - 1
    return Document(
        "The noise that a privacy target needs",
        (
            Table(title, _COLUMNS, rows, last + 1, tuple(range(last))),
            *_advice(plans, ledger),
        ),
        {
            "target_epsilon": plans.target_epsilon,
            "delta": plans.delta,
            "epochs": plans.epochs,
            "accountant": plans.accountant,
            "neighbours": plans.neighbours,
            "plans": [dataclasses.asdict(each) for each in plans.rows],
        },
    )


def _advice(plans: PlannedTrainings, ledger: str | None) -> Iterator[Part]:
    size = plans.recommended.batch_size
    yield Text(
        "",
        (
            f"Take {size:,}: of the sizes with {FEWEST_STEPS} steps or more, "
            f"the smallest with {ENOUGH:.0%} of the best signal, which is "
            "sqrt(steps) / (noise/example).",
        ),
    )
    yield Code(
        (
            f"keras_dp.make_private(model, (x, y), batch_size={size}, "
            f"epochs={plans.epochs},",
            f"    target_epsilon={plans.target_epsilon!r}, "
            f"delta={plans.delta!r}, ledger={ledger or '...'!r})",
        )
    )
