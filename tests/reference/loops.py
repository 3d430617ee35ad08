"""Training loops written out by hand, as the obvious twins of simulator, update and corrections.

They share the model and the data with the program, and nothing else: torch.optim's own AdamW, ``loss.backward()``,
a Python list of old weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor], Tensor]


def clip(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """Scale all gradients so that their joint norm is at most ``max_norm``."""
    norm = math.sqrt(sum(torch.linalg.vector_norm(p.grad, dtype=torch.float64).item() ** 2 for p in parameters))
    if norm > max_norm:
        for parameter in parameters:
            parameter.grad *= max_norm / norm


def backward(model: nn.Module, loss_of: Loss, windows: Tensor, num_micro_batches: int) -> float:
    """Fill the model's gradients with those of the batch's mean loss, micro-batch after micro-batch."""
    model.zero_grad()
    total = 0.0
    for micro_batch in windows.chunk(num_micro_batches):
        loss = loss_of(model, micro_batch) / num_micro_batches
        loss.backward()
        total += loss.item()
    return total


def plain_loop(
    model: nn.Module, loss_of: Loss, batches: Sequence[Tensor], lrs: Sequence[float], num_micro_batches: int, **adamw
) -> list[float]:
    """What everybody writes: backward, clip at 1, step. Trains ``model``; returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), **adamw)
    losses = []
    for windows, lr in zip(batches, lrs, strict=True):
        losses.append(backward(model, loss_of, windows, num_micro_batches))
        clip(list(model.parameters()), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return losses


def delayed_loop(
    model: nn.Module,
    loss_of: Loss,
    batches: Sequence[Tensor],
    lrs: Sequence[float],
    num_micro_batches: int,
    delay: int,
    **adamw,
) -> list[float]:
    """The same with gradients taken at the model of ``delay`` updates ago, or at the first one before that."""
    optimizer = torch.optim.AdamW(model.parameters(), **adamw)
    history = [copy.deepcopy(model)]
    losses = []
    for batch, (windows, lr) in enumerate(zip(batches, lrs, strict=True)):
        stale = history[max(batch - delay, 0)]
        losses.append(backward(stale, loss_of, windows, num_micro_batches))
        for parameter, stale_parameter in zip(model.parameters(), stale.parameters(), strict=True):
            parameter.grad = stale_parameter.grad.clone()
        clip(list(model.parameters()), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        history.append(copy.deepcopy(model))
    return losses
