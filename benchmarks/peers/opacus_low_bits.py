"""Noised answers of Opacus, for attacks on their low bits.

    python opacus_low_bits.py FILE TRIALS COORDINATES STEP [secure]

Writes an .npz file: `without` and `with_one`, answers `[trials, coordinates]`
to a sum of zeros and to one of STEPs, and `sums`, two float sums of the records
in `records.npy` beside FILE, with the first record and without it.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer


def answer(total: Any, secure: bool) -> Any:
    """Returns a sum with the noise of Opacus's optimizer."""
    weights = torch.nn.Parameter(torch.zeros_like(total))
    optimizer = DPOptimizer(
        torch.optim.SGD([weights], lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=1,
        loss_reduction="sum",
        secure_mode=secure,
    )
    weights.summed_grad = total
    optimizer.add_noise()
    return weights.grad.numpy()


def clipped_sum(records: Any) -> Any:
    """Returns the sum by Opacus's optimizer of records of norm 1 or less."""
    weights = torch.nn.Parameter(torch.zeros(records.shape[1]))
    optimizer = DPOptimizer(
        torch.optim.SGD([weights], lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=1.01,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    weights.grad_sample = torch.from_numpy(records)
    optimizer.clip_and_accumulate()
    return weights.summed_grad.numpy()


def main() -> None:
    """Writes the answers."""
    file, trials, coordinates, step, *secure = sys.argv[1:]
    shape = int(coordinates)
    found = {
        name: np.stack(
            [
                answer(torch.full([shape], value), bool(secure))
                for _ in range(int(trials))
            ]
        )
        for name, value in (("without", 0.0), ("with_one", float(step)))
    }
    records = np.load(Path(file).with_name("records.npy"))
    others = records.copy()
    others[0] = 0
    sums = np.stack([clipped_sum(records), clipped_sum(others)])
    np.savez(file, sums=sums, **found)


if __name__ == "__main__":
    main()
