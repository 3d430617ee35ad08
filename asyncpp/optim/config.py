"""The knobs of every optimizer, and what they may be. No torch here: a wrong value is reported at once.

conf/optimizer/<name>.yaml holds the values and their sources; the rule itself is in asyncpp/optim/<name>.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.errors import require
from asyncpp.parameters import Role


def check_beta(key: str, beta: float) -> None:
    require(0.0 <= beta < 1.0, key, beta, "expected a number in [0, 1)")


def check_betas(key: str, betas: tuple[float, ...]) -> None:
    require(all(0.0 <= beta < 1.0 for beta in betas), key, list(betas), "expected every beta in [0, 1)")


def check_option(key: str, value: str, options: tuple[str, ...]) -> None:
    require(value in options, key, value, f"expected one of {', '.join(options)}")


@dataclass
class RuleConfig:
    """What every update rule has.

    lr: the peak learning rate; lr_schedule scales it.
    weight_decay: decoupled, multiplied by the learning rate: x <- (1 - lr * weight_decay) * x.
    """

    rule: ClassVar[str]  # import path of the UpdateRule that this configures

    lr: float = MISSING
    weight_decay: float = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        require(self.lr > 0.0, f"{key}.lr", self.lr, "expected a positive number")
        require(self.weight_decay >= 0.0, f"{key}.weight_decay", self.weight_decay, "expected zero or more")


@dataclass
class OptimizerConfig(RuleConfig):
    """An entry of conf/optimizer: a rule, and which rule takes the roles that it does not."""

    name: str = MISSING

    def rules(self) -> dict[Role, RuleConfig]:
        """The rule of every role. Here: this one for all."""
        return dict.fromkeys(Role, self)


@dataclass
class MatrixOptimizerConfig(OptimizerConfig):
    """A rule for hidden matrices only; embeddings, head, norms and biases take AdamW with its own learning rate."""

    adamw: AdamWRuleConfig = MISSING

    def rules(self) -> dict[Role, RuleConfig]:
        return {role: self if role is Role.MATRIX else self.adamw for role in Role}

    def check(self, key: str) -> None:
        super().check(key)
        self.adamw.check(f"{key}.adamw")


@dataclass
class AdamWRuleConfig(RuleConfig):
    """betas: decay rates of the first and second moment; eps: added to the root of the second."""

    rule = "asyncpp.optim.adamw.AdamW"

    betas: tuple[float, float] = MISSING
    eps: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_betas(f"{key}.betas", self.betas)
        require(self.eps > 0.0, f"{key}.eps", self.eps, "expected a positive number")


@dataclass
class AdamWConfig(AdamWRuleConfig, OptimizerConfig):
    pass


@dataclass
class MuonConfig(MatrixOptimizerConfig):
    """momentum: decay rate of the gradient's average; scale: how an orthogonal update is sized.

    newton_schulz: the iteration that orthogonalises; newton_schulz_dtype: the dtype of its products.
    """

    rule = "asyncpp.optim.muon.Muon"

    momentum: float = MISSING
    nesterov: bool = MISSING
    scale: str = MISSING
    newton_schulz: str = MISSING
    newton_schulz_dtype: str = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_beta(f"{key}.momentum", self.momentum)
        check_option(f"{key}.scale", self.scale, ("match_rms", "original"))
        check_option(f"{key}.newton_schulz", self.newton_schulz, ("quintic", "polar_express"))
        check_option(f"{key}.newton_schulz_dtype", self.newton_schulz_dtype, ("float64", "float32", "bfloat16"))
