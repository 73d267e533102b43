"""The models of `workloads.py` in PyTorch, parameter by parameter.

Attention is written with `nn.Linear` and PyTorch's fused product, which all of
Opacus's modes know; its own `DPMultiheadAttention` has no ghost clipping.
"""

from typing import Any

import torch
import workloads
from torch import nn
from torch.nn import functional

GROUPS = 8
GROUP_EPSILON = 1e-3  # Keras's.


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Any) -> Any:
        """Returns `[batch, channels]` of `[batch, positions, channels]`."""
        return x.mean(dim=1)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, channels, 3, stride, padding=1)
        self.first_norm = nn.GroupNorm(GROUPS, channels, GROUP_EPSILON)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.GroupNorm(GROUPS, channels, GROUP_EPSILON)
        self.shortcut = (
            nn.Conv2d(inputs, channels, 1, stride)
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        """Returns the block's output."""
        hidden = functional.relu(self.first_norm(self.first(x)))
        hidden = self.second_norm(self.second(hidden))
        return functional.relu(self.shortcut(x) + hidden)


class EncoderBlock(nn.Module):
    """Self-attention and a feed-forward net, normalized after each."""

    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, feed_forward)
        self.projection = nn.Linear(feed_forward, width)
        self.norm = nn.LayerNorm(width)

    def _heads(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        """Returns the block's output."""
        attended = functional.scaled_dot_product_attention(
            self._heads(self.query(x)),
            self._heads(self.key(x)),
            self._heads(self.value(x)),
        )
        joined = attended.transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.output(joined))
        hidden = functional.relu(self.hidden(x))
        return self.norm(x + self.projection(hidden))


def _logistic() -> nn.Module:
    return nn.Sequential(nn.Linear(105, 2))


def _small_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(100, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def _residual_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.GroupNorm(GROUPS, 32, GROUP_EPSILON),
        nn.ReLU(),
        Residual(32, 32, 1),
        Residual(32, 64, 2),
        Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _transformer() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(20_000, 128),
        EncoderBlock(128, 4, 256),
        EncoderBlock(128, 4, 256),
        Mean(),
        nn.Linear(128, 2),
    )


def _bag_of_words() -> nn.Module:
    return nn.Sequential(nn.Embedding(50_000, 64), Mean(), nn.Linear(64, 2))


MAKERS = {
    "t1": _logistic,
    "t2": _small_mlp,
    "w1": _cnn,
    "w2": _mlp,
    "w3": _residual_cnn,
    "w4": _transformer,
    "w5": _bag_of_words,
}


def make(workload: workloads.Workload) -> nn.Module:
    """Returns the model of a workload, however long its sequences are."""
    torch.manual_seed(0)
    for name, maker in MAKERS.items():
        if workload.parameters == workloads.WORKLOADS[name].parameters:
            return maker()
    raise ValueError(
        f"`workload` must be one of {sorted(MAKERS)}. "
        f"Received: workload={workload!r}."
    )
