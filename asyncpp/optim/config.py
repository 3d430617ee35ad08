"""The knobs of every optimizer, and what they may be. No torch here: a wrong value is reported at once.

conf/optimizer/<name>.yaml holds the values and their sources; the rule itself is in asyncpp/optim/<name>.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.errors import check_beta, check_not_negative, check_option, check_positive, require
from asyncpp.parameters import Role


def check_betas(key: str, betas: tuple[float, ...], num_betas: int) -> None:
    allowed = len(betas) == num_betas and all(0.0 <= beta < 1.0 for beta in betas)
    require(allowed, key, list(betas), f"expected {num_betas} numbers in [0, 1)")


@dataclass
class RuleConfig(ABC):
    """What every update rule has.

    lr: the peak learning rate; lr_schedule scales it.
    weight_decay: decoupled, multiplied by the learning rate: x <- (1 - lr * weight_decay) * x.
    """

    rule: ClassVar[str]  # import path of the UpdateRule that this configures
    same_shape: ClassVar[bool] = False  # True: the weights of one rule have one shape, so that it may stack them
    needs_fresh_gradients: ClassVar[bool] = False  # True: of the same batch, at the newest weights, before every update

    lr: float = MISSING
    weight_decay: float = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        check_positive(f"{key}.lr", self.lr)
        check_not_negative(f"{key}.weight_decay", self.weight_decay)

    @abstractmethod
    def state_copies(self, shape: Sequence[int]) -> float:
        """Elements of state for each element of a parameter of ``shape``, for plans (asyncpp/planner/memory.py)."""

    @abstractmethod
    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        """Elements that a rule allocates while it works, for each of its parameters', which are of ``shape`` at most.

        needs_update: u is asked for (UpdateRule.update), not only its effect on the weights (UpdateRule.step).
        """


@dataclass
class OptimizerConfig(RuleConfig):
    """An entry of conf/optimizer: a rule, and which rule takes the roles that it does not."""

    name: str = MISSING

    def rules(self) -> dict[Role, RuleConfig]:
        """The rule of every role. Here: this one for all."""
        return dict.fromkeys(Role, self)

    def check_processes(self, key: str) -> None:
        """Raise ConfigError for an optimizer that real processes can't have."""
        accepted = (
            "needs a second gradient of every batch, at the newest weights, which a pipeline does not have; "
            "use pipeline=simulated"
        )
        require(not self.needs_fresh_gradients, key, self.name, accepted)


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
        check_betas(f"{key}.betas", self.betas, 2)
        check_positive(f"{key}.eps", self.eps)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 2.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 1.0 if needs_update else 0.0


@dataclass
class AdamWConfig(AdamWRuleConfig, OptimizerConfig):
    pass


@dataclass
class AdamWSplitConfig(AdamWConfig):
    """delayed_moment: the one that sees the delayed gradient; the other sees the fresh one."""

    rule = "asyncpp.optim.adamw_split.AdamWSplit"
    needs_fresh_gradients = True

    delayed_moment: str = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_option(f"{key}.delayed_moment", self.delayed_moment, ("first", "second"))


@dataclass
class NAdamConfig(AdamWConfig):
    """momentum_decay: ψ, by which the first beta warms up."""

    rule = "asyncpp.optim.nadam.NAdam"

    momentum_decay: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_not_negative(f"{key}.momentum_decay", self.momentum_decay)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 2.0 + 1.0 / math.prod(shape)

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 4.0  # u, and three times the largest tensor


@dataclass
class SGDConfig(OptimizerConfig):
    """momentum: decay rate of the gradients' sum. weight_decay is coupled: times x it is added to the gradient."""

    rule = "asyncpp.optim.sgd.SGD"

    momentum: float = MISSING
    nesterov: bool = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_beta(f"{key}.momentum", self.momentum)
        possible = self.momentum > 0.0 or not self.nesterov
        require(possible, f"{key}.nesterov", self.nesterov, "expected false without momentum")

    def state_copies(self, shape: Sequence[int]) -> float:
        return 1.0 if self.momentum > 0.0 else 0.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 2.0


@dataclass
class LionConfig(OptimizerConfig):
    """betas: weight of the momentum in the step's direction, and the momentum's own decay rate."""

    rule = "asyncpp.optim.lion.Lion"

    betas: tuple[float, float] = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_betas(f"{key}.betas", self.betas, 2)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 1.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 2.0


@dataclass
class AdanConfig(OptimizerConfig):
    """betas: decay rates of the averages of gradients, of their differences, and of the squared look-ahead.

    proximal_decay: x <- (x - u) / (1 + lr * weight_decay); else decoupled as everywhere.
    """

    rule = "asyncpp.optim.adan.Adan"

    betas: tuple[float, float, float] = MISSING
    eps: float = MISSING
    proximal_decay: bool = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_betas(f"{key}.betas", self.betas, 3)
        check_positive(f"{key}.eps", self.eps)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 4.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 4.0


@dataclass
class MARSConfig(AdamWRuleConfig, MatrixOptimizerConfig):
    """gamma: strength of the variance reduction, whose gradient AdamW takes."""

    rule = "asyncpp.optim.mars.MARS"

    gamma: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_not_negative(f"{key}.gamma", self.gamma)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 3.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 2.0 if needs_update else 1.0


@dataclass
class MuonConfig(MatrixOptimizerConfig):
    """momentum: decay rate of the gradient's average; scale: how an orthogonal update is sized.

    newton_schulz: the iteration that orthogonalises; newton_schulz_dtype: the dtype of its products.
    """

    rule = "asyncpp.optim.muon.Muon"
    same_shape = True

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

    def state_copies(self, shape: Sequence[int]) -> float:
        return 1.0

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        return 3.0 + 3.0 * min(shape[-2:]) / max(shape[-2:])  # Gram matrices


@dataclass
class NorMuonConfig(MuonConfig):
    """beta2: decay rate of the rows' second moment."""

    rule = "asyncpp.optim.normuon.NorMuon"

    beta2: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_beta(f"{key}.beta2", self.beta2)

    def state_copies(self, shape: Sequence[int]) -> float:
        return 1.0 + 1.0 / shape[-1]


@dataclass
class SOAPConfig(MatrixOptimizerConfig):
    """betas, eps: of Adam in the eigenbasis; shampoo_beta: decay rate of the Gram matrices that it comes from.

    precondition_frequency: updates from one new eigenbasis to the next.
    max_precondition_dim: a longer side of a matrix keeps the identity for a basis.
    """

    rule = "asyncpp.optim.soap.SOAP"
    same_shape = True

    betas: tuple[float, float] = MISSING
    eps: float = MISSING
    shampoo_beta: float = MISSING
    precondition_frequency: int = MISSING
    max_precondition_dim: int = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        check_betas(f"{key}.betas", self.betas, 2)
        check_positive(f"{key}.eps", self.eps)
        check_beta(f"{key}.shampoo_beta", self.shampoo_beta)
        check_positive(f"{key}.precondition_frequency", self.precondition_frequency)
        check_not_negative(f"{key}.max_precondition_dim", self.max_precondition_dim)

    def state_copies(self, shape: Sequence[int]) -> float:
        num_rows, num_columns = shape[-2:]
        sides = [size for size in (num_rows, num_columns) if size <= self.max_precondition_dim]
        return 2.0 + sum(2.0 * size**2 / (num_rows * num_columns) for size in sides)

    def workspace_copies(self, shape: Sequence[int], needs_update: bool) -> float:
        short, long = sorted(shape[-2:])
        return 2.0 + short / long + 6.0 * long / short  # Gram matrices, when the bases are brought up to date
