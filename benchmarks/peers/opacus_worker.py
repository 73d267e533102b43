"""Opacus's steps, and PyTorch's own without privacy.

Modes: `torch`, without privacy; `ghost`, `hooks` and `functorch`, as
`PrivacyEngine.make_private` calls them. The loop is the one of Opacus's
documentation, on batches that lie ready in memory: no time goes into loading.
On a GPU where there is one, without TensorFloat-32.
"""

import math
import time
import warnings
from typing import Any

import numpy as np
import opacus
import torch
import workloads
from opacus import PrivacyEngine
from peers import protocol, torch_models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _loader(workload: workloads.Workload) -> Any:
    x, y = workloads.data(workload)
    if x.ndim == 4:
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    if workload.vocabulary:
        x = x.astype(np.int64)
    tensors = TensorDataset(
        torch.from_numpy(x).to(DEVICE),
        torch.from_numpy(y.astype(np.int64)).to(DEVICE),
    )
    return DataLoader(tensors, batch_size=workload.batch)


def build(workload: workloads.Workload, mode: str) -> protocol.Step:
    """Returns the step of a mode."""
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False
    model = torch_models.make(workload).to(DEVICE)
    parameters = sum(math.prod(p.shape) for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=protocol.LEARNING_RATE)
    criterion = nn.CrossEntropyLoss()
    loader = _loader(workload)
    batches = list(loader)
    if mode != "torch":
        model.train()
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=loader,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            max_grad_norm=protocol.L2_NORM_CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        model, optimizer = made[:2]
        if mode == "ghost":
            criterion = made[2]

    def run(steps: int) -> float:
        start = time.perf_counter()
        for step in range(steps):
            x, y = batches[step % len(batches)]
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    versions = f"opacus {opacus.__version__}, torch {torch.__version__}"
    held = torch.cuda.max_memory_allocated if DEVICE == "cuda" else None
    return protocol.Step(parameters, run, versions, held)


if __name__ == "__main__":
    protocol.serve(build)
