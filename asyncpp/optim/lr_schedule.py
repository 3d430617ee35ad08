"""The learning rate over a run, as a factor in [0, 1] of every group's peak. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import check_fraction, require


@dataclass
class LRScheduleConfig:
    """An entry of conf/lr_schedule: a linear warm-up, then ``after_warmup``.

    lr_warmup_fraction: share of the run's steps that warm up.
    lr_warmup_steps: the same as a number of steps; where it is given, it takes the fraction's place.
    """

    name: str = MISSING
    lr_warmup_fraction: float = MISSING
    lr_warmup_steps: int | None = MISSING

    def check(self, key: str, num_steps: int) -> None:
        """Raise ConfigError for a value that a run of ``num_steps`` steps cannot use."""
        check_fraction(f"{key}.lr_warmup_fraction", self.lr_warmup_fraction)
        steps = self.lr_warmup_steps
        accepted = f"expected 0 to trainer.num_steps={num_steps}, or null"
        require(steps is None or 0 <= steps <= num_steps, f"{key}.lr_warmup_steps", steps, accepted)

    def num_warmup_steps(self, num_steps: int) -> int:
        if self.lr_warmup_steps is not None:
            return self.lr_warmup_steps
        return round(self.lr_warmup_fraction * num_steps)

    def factor(self, step: int, num_steps: int) -> float:
        """What the peak learning rates are multiplied by at ``step``, counted from 0; 1 at the end of the warm-up."""
        warmup = self.num_warmup_steps(num_steps)
        if step < warmup:
            return (step + 1) / warmup
        last = max(num_steps - 1 - warmup, 1)
        return self.after_warmup((step - warmup) / last)

    def after_warmup(self, progress: float) -> float:
        """The factor when ``progress``, in [0, 1], of the steps after the warm-up is done."""
        return 1.0


@dataclass
class CosineConfig(LRScheduleConfig):
    """Half a cosine from the peak down to ``final_lr_fraction`` of it at the last step."""

    final_lr_fraction: float = MISSING

    def check(self, key: str, num_steps: int) -> None:
        super().check(key, num_steps)
        check_fraction(f"{key}.final_lr_fraction", self.final_lr_fraction)

    def after_warmup(self, progress: float) -> float:
        final = self.final_lr_fraction
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
