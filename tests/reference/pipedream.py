"""PipeDream by hand: stages that pass activations on, stash their weights a micro-batch, and update after each.

Every stage has its own list of what to do, warm-up forwards and then one backward, one forward, and does the next
thing as soon as its input is there. Nothing here knows a delay: it comes out of the order.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn
from torch.func import functional_call


class PipeDreamStage:
    """module: the stage, without values; weights: its parameters by name."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor], warm_up: int, num_batches: int, **adamw) -> None:
        self.module = module
        self.weights = {name: nn.Parameter(weight.clone()) for name, weight in weights.items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), **adamw)
        forwards, backwards = deque(range(num_batches)), deque(range(num_batches))
        self.actions: deque[tuple[str, int]] = deque(("F", forwards.popleft()) for _ in range(warm_up))
        while backwards:
            if forwards:
                self.actions.append(("F", forwards.popleft()))
            self.actions.append(("B", backwards.popleft()))
        self.stash: dict[int, dict[str, Tensor]] = {}
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, batch: int, inputs: Tensor, labels: Tensor | None) -> Tensor:
        """Run ``batch`` on a copy of the weights as they are now, and keep that copy for its backward."""
        self.stash[batch] = {name: weight.detach().clone().requires_grad_() for name, weight in self.weights.items()}
        if inputs.is_floating_point():
            inputs = inputs.detach().requires_grad_()
        output = functional_call(self.module, self.stash[batch], (inputs, labels))
        self.saved[batch] = (inputs, output)
        return output.detach()

    def backward(self, batch: int, gradient: Tensor | None, lr: float) -> Tensor | None:
        """Differentiate ``batch`` on its stashed weights, update the newest ones, return the input's gradient."""
        inputs, output = self.saved.pop(batch)
        stashed = self.stash.pop(batch)
        output.backward(gradient)
        for name, weight in self.weights.items():
            weight.grad = stashed[name].grad
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        return inputs.grad


def train(stages: list[PipeDreamStage], windows_by_batch: list[Tensor], lrs: list[float]) -> list[float]:
    """Run every action of every stage in an order that their inputs allow; returns the losses by batch."""
    inputs: dict[tuple[int, int], Tensor] = {(0, b): windows[:, :-1] for b, windows in enumerate(windows_by_batch)}
    gradients: dict[tuple[int, int], Tensor | None] = {}
    losses: dict[int, float] = {}
    last = len(stages) - 1
    while any(stage.actions for stage in stages):
        for number, stage in enumerate(stages):
            if not stage.actions:
                continue
            kind, batch = stage.actions[0]
            waiting = inputs if kind == "F" else gradients
            if (number, batch) not in waiting:
                continue
            stage.actions.popleft()
            if kind == "F":
                labels = windows_by_batch[batch][:, 1:] if number == last else None
                output = stage.forward(batch, inputs.pop((number, batch)), labels)
                if number == last:
                    losses[batch] = output.item()
                    gradients[last, batch] = None
                else:
                    inputs[number + 1, batch] = output
            else:
                gradient = stage.backward(batch, gradients.pop((number, batch)), lrs[batch])
                if number > 0:
                    gradients[number - 1, batch] = gradient
    return [losses[batch] for batch in range(len(windows_by_batch))]
