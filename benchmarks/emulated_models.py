"""The models that benchmarks/emulated_link.py trains, in small, and the pace at which they compute."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from commsched.torch.hooks import GradientHooks, trainable_parameters

SLOWED = 2.5
"""A paced backward takes so many times what it takes at best, so that it can keep its pace."""

LATE_NS = 1_000_000


class Made(NamedTuple):
    """A model with a batch and its loss."""

    model: nn.Module
    batch: torch.Tensor


def mlp() -> Made:
    """Return 22 linear layers: 44 gradients."""
    layers: list[nn.Module] = [nn.Linear(512, 512)]
    for _ in range(20):
        layers += [nn.ReLU(), nn.Linear(512, 512)]
    layers += [nn.ReLU(), nn.Linear(512, 1000)]
    return Made(nn.Sequential(*layers), torch.randn(128, 512))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, with a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.body(x) + self.short(x))


def resnet() -> Made:
    """Return ResNet-50 at half its width for small images: 161 gradients."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 1, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    inputs = 32
    for width, blocks, stride in ((32, 3, 2), (64, 4, 2), (128, 6, 2), (256, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return Made(nn.Sequential(*layers), torch.randn(8, 3, 32, 32))


class Block(nn.Module):
    """A transformer's block: 12 gradients."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens in, scores of the next token out."""

    def __init__(self, width: int, blocks: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def transformer() -> Made:
    """Return 32 blocks with an embedding and a head: 388 gradients."""
    return Made(Transformer(192, 32, 4000), torch.randint(4000, (2, 64)))


MODELS: dict[str, Callable[[], Made]] = {
    "MLP": mlp,
    "ResNet-50, half width": resnet,
    "transformer, 32 blocks": transformer,
}


def training(
    ddp: torch.nn.Module, batch: torch.Tensor, pace: Pace | None = None
) -> Callable[[], int]:
    """Return a training step, which returns when its backward had returned."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)

    def step() -> int:
        if pace is not None:
            pace.begin()
        optimizer.zero_grad()
        loss = ddp(batch).float().square().mean()
        loss.backward()
        returned = time.perf_counter_ns()
        del loss  # what it takes to free the graph is no part of backward
        optimizer.step()
        return returned

    return step


class Pace:
    """Makes every step compute at the same pace, whatever else the machine does meanwhile.

    A gradient that comes before its time waits; the real work is done all the same. Without this a
    busy machine's backward takes twice as long in one minute as in another, and no two steps compare.

    Parameters
    ----------
    made
        The model; it is run a few times to learn its pace.
    """

    def __init__(self, made: Made) -> None:
        step = training(made.model, made.batch)
        best: dict[int, int] = {}
        forward = []
        for _ in range(8):
            with GradientHooks(trainable_parameters(made.model)) as hooks:
                hooks.start_step()
                step()
                hooks.end_step()
            ready = hooks.times()[0].ready
            first = min(ready.values())
            forward.append(first)
            for k, ns in ready.items():
                best[k] = min(ns - first, best.get(k, ns - first))
        latest = 0
        self.forward_ns = int(SLOWED * min(forward))
        self.after_ns: dict[int, int] = {}
        for k, ns in sorted(best.items(), key=lambda item: item[1]):
            latest = max(latest, int(SLOWED * ns))
            self.after_ns[k] = latest
        self._start = 0
        self._came = self._late = 0

    def missed(self) -> float:
        """Return which share of the gradients came a millisecond late or more, since the last call."""
        share = self._late / max(1, self._came)
        self._came = self._late = 0
        return share

    def begin(self) -> None:
        """Begin a step."""
        self._start = time.perf_counter_ns()

    def apply(self, model: torch.nn.Module) -> None:
        """Let a model's gradients wait for their times, before anybody else gets to know them."""
        for k, parameter in enumerate(trainable_parameters(model).values()):
            parameter.register_hook(functools.partial(self._wait, self.after_ns[k]))

    def _wait(self, after_ns: int, gradient: torch.Tensor) -> torch.Tensor:
        left = self._start + self.forward_ns + after_ns - time.perf_counter_ns()
        self._came += 1
        if left > 0:
            time.sleep(left / 1e9)
        elif left < -LATE_NS:
            self._late += 1
        return gradient
