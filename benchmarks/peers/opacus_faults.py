"""Faults planted in a training with Opacus, and what its tools say of them.

Its tools are the validator of modules, the comparison of gradients with those
of single examples, and what `PrivacyEngine` and its optimizer refuse or warn of
while they train. A tool that is silent has not found the fault.
"""

import contextlib
import json
import warnings
from typing import Any
from unittest import mock

import torch
from opacus import PrivacyEngine
from opacus.optimizers import optimizer as dp_optimizer
from opacus.utils.per_sample_gradients_utils import (
    check_per_sample_gradients_are_correct,
)
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(dim=1, keepdim=True)
DPOptimizer = dp_optimizer.DPOptimizer


class CentredOnBatch(nn.Module):
    """A layer in which records interact."""

    def forward(self, x: Any) -> Any:
        """Subtracts the mean of the batch."""
        return x - x.mean(dim=0)


class MovingMean(nn.Module):
    """A layer whose state follows its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        """Moves the state in training."""
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=0))
        return x


def loss_over_batch(outputs: Any, targets: Any) -> Any:
    """A loss in which records interact."""
    apart = (outputs - targets) ** 2
    return (apart * apart.mean()).mean()


def model(*layers: nn.Module) -> nn.Module:
    """Returns a small network behind a layer."""
    return nn.Sequential(*layers, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def last_unclipped(clip: Any) -> Any:
    """Returns a clip that leaves out the last variable."""

    def clipped(self: Any) -> None:
        clip(self)
        last = self.params[-1]
        last.summed_grad = self._get_flat_grad_sample(last).sum(dim=0)

    return clipped


def real_batch(self: Any) -> None:
    """Divides by the number of records that came."""
    for each in self.params:
        each.grad /= max(1, len(self.grad_samples[0]))


def told_twice(step: Any) -> Any:
    """Returns an accountant's step that takes the noise for twice as large."""

    def stepped(self: Any, *, noise_multiplier: float, **rest: Any) -> None:
        step(self, noise_multiplier=2 * noise_multiplier, **rest)

    return stepped


def same_noise(noise: Any) -> Any:
    """Returns noise that is the same in every round."""

    def drawn(std: float, reference: Any, generator: Any = None, **rest: Any):
        again = torch.Generator().manual_seed(0)
        return noise(std, reference, again, **rest)

    return drawn


def tools(
    module: nn.Module, criterion: Any = None, *, poisson: bool = True
) -> str:
    """Returns which tools refuse a training, or warn of it."""
    found = []
    if ModuleValidator.validate(module, strict=False):
        found.append("validator")
    try:
        right = check_per_sample_gradients_are_correct(X[:8], module)
    except Exception:  # noqa: BLE001 - a refusal of any kind counts.
        right = False
    if not right:
        found.append("gradient check")
    # Neither hooks nor a second engine are left from above.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            train(module, criterion or nn.MSELoss(), poisson)
        except Exception as error:  # noqa: BLE001 - likewise.
            found.append(f"training ({type(error).__name__})")
    usual = ("Secure RNG", "backward hook", "Optimal order")
    if any(not any(u in str(w.message) for u in usual) for w in told):
        found.append("warning")
    return ", ".join(found) or "no"


def train(module: nn.Module, criterion: Any, poisson: bool) -> None:
    """Runs ten rounds, and asks for epsilon."""
    engine = PrivacyEngine(accountant="rdp")
    private, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    for x, y in loader:
        optimizer.zero_grad()
        criterion(private(x), y).backward()
        optimizer.step()
    engine.get_epsilon(1e-5)


def patched(owner: Any, name: str, changed: Any) -> Any:
    """Returns a patch of a function by `changed(it)`."""
    return mock.patch.object(owner, name, changed(getattr(owner, name)))


def main() -> None:
    """Prints what is found of each fault."""
    from opacus.accountants import RDPAccountant

    noise = "_generate_noise"
    plain: Any = contextlib.nullcontext()
    halved = patched(
        dp_optimizer, noise, lambda f: lambda std, *a, **k: f(std / 2, *a, **k)
    )
    again = patched(dp_optimizer, noise, same_noise)
    unclipped = patched(DPOptimizer, "clip_and_accumulate", last_unclipped)
    counted = mock.patch.object(DPOptimizer, "scale_grad", real_batch)
    twice = patched(RDPAccountant, "step", told_twice)
    plants = {
        "none": (plain, {}),
        "noise is halved": (halved, {}),
        "a seed is used in every round": (again, {}),
        "the last variable is not clipped": (unclipped, {}),
        "the sum is divided by the number of records": (counted, {}),
        "a layer computes over the batch": (
            plain,
            {"module": model(CentredOnBatch())},
        ),
        "a loss computes over the batch": (
            plain,
            {"criterion": loss_over_batch},
        ),
        "the state of a layer follows its inputs": (
            plain,
            {"module": model(MovingMean())},
        ),
        "samples have a fixed size": (plain, {"poisson": False}),
        "the ledger holds twice the noise": (twice, {}),
    }
    found = {}
    for name, (plant, options) in plants.items():
        torch.manual_seed(0)
        with plant:
            found[name] = tools(**{"module": model(), **options})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
