"""AdamW, NAdam, SGD, Lion, Adan and MARS as their equations read, for one tensor and no speed.

``step(x, g, lr)`` returns the weights after one update; ``self.t`` is its number, from one.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Twin:
    def __init__(self, config, x: Tensor) -> None:
        self.c = config
        self.t = 0
        self.start(torch.zeros_like(x))

    def step(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        self.t += 1
        return self.equation(x, g, lr)


def ema(average: Tensor, value: Tensor, beta: float) -> Tensor:
    return beta * average + (1 - beta) * value


class AdamW(Twin):
    def start(self, zeros: Tensor) -> None:
        self.m = self.v = zeros

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        b1, b2 = self.c.betas
        self.m = ema(self.m, g, b1)
        self.v = ema(self.v, g**2, b2)
        m_hat = self.m / (1 - b1**self.t)
        v_hat = self.v / (1 - b2**self.t)
        return (1 - lr * self.c.weight_decay) * x - lr * m_hat / (v_hat.sqrt() + self.c.eps)


class MARS(AdamW):
    def start(self, zeros: Tensor) -> None:
        super().start(zeros)
        self.previous = zeros

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        b1 = self.c.betas[0]
        reduced = g + self.c.gamma * b1 / (1 - b1) * (g - self.previous)
        self.previous = g
        return super().equation(x, reduced / max(1.0, reduced.norm().item()), lr)


class NAdam(Twin):
    def start(self, zeros: Tensor) -> None:
        self.m = self.v = zeros
        self.product = 1.0

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        b1, b2 = self.c.betas
        mu = b1 * (1 - 0.5 * 0.96 ** (self.t * self.c.momentum_decay))
        mu_next = b1 * (1 - 0.5 * 0.96 ** ((self.t + 1) * self.c.momentum_decay))
        self.product *= mu
        self.m = ema(self.m, g, b1)
        self.v = ema(self.v, g**2, b2)
        look_ahead = (1 - mu) * g / (1 - self.product) + mu_next * self.m / (1 - self.product * mu_next)
        root = (self.v / (1 - b2**self.t)).sqrt()
        return (1 - lr * self.c.weight_decay) * x - lr * look_ahead / (root + self.c.eps)


class SGD(Twin):
    def start(self, zeros: Tensor) -> None:
        self.b = zeros

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        g = g + self.c.weight_decay * x
        self.b = self.c.momentum * self.b + g
        return x - lr * (g + self.c.momentum * self.b if self.c.nesterov else self.b)


class Lion(Twin):
    def start(self, zeros: Tensor) -> None:
        self.m = zeros

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        b1, b2 = self.c.betas
        direction = ema(self.m, g, b1).sign()
        self.m = ema(self.m, g, b2)
        return (1 - lr * self.c.weight_decay) * x - lr * direction


class Adan(Twin):
    def start(self, zeros: Tensor) -> None:
        self.m = self.v = self.n = zeros
        self.previous = None

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        b1, b2, b3 = self.c.betas
        d = torch.zeros_like(g) if self.previous is None else g - self.previous
        self.previous = g
        self.m = ema(self.m, g, b1)
        self.v = ema(self.v, d, b2)
        self.n = ema(self.n, (g + b2 * d) ** 2, b3)
        denominator = (self.n / (1 - b3**self.t)).sqrt() + self.c.eps
        delta = lr * (self.m / (1 - b1**self.t) + b2 * self.v / (1 - b2**self.t)) / denominator
        if self.c.proximal_decay:
            return (x - delta) / (1 + lr * self.c.weight_decay)
        return (1 - lr * self.c.weight_decay) * x - delta
