"""The knobs of every correction, and what they may be. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.errors import check_beta, check_fraction, check_not_negative, check_option, check_positive, require


@dataclass
class CorrectionConfig:
    """An entry of conf/correction."""

    correction: ClassVar[str] = "asyncpp.correction.base.Correction"  # import path of what this configures
    acts_without_delay: ClassVar[bool] = False  # True: a synchronous run, too, is changed by it
    corrects_gradients: ClassVar[bool] = False  # True: correct_gradients is called, with whole gradients
    needs_constant_delay: ClassVar[bool] = False  # True: not defined where the delay varies from batch to batch

    name: str = MISSING

    @property
    def state_copies(self) -> float:
        """Elements of state for each element of the parameters, for plans (asyncpp/planner/memory.py)."""
        return 0.0

    def num_sync_steps(self, num_steps: int) -> int:
        """How many of the run's first steps are without delay."""
        return 0

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""


@dataclass
class StrengthConfig(CorrectionConfig):
    """strength: how much of the correction is applied; 0 is the delayed update as it is, to the bit."""

    strength: float = MISSING

    def check(self, key: str) -> None:
        check_not_negative(f"{key}.strength", self.strength)


@dataclass
class ErrorFeedbackConfig(StrengthConfig):
    """strength: lambda, the share of the last error that is added back; decay_form: see error_feedback.py."""

    correction = "asyncpp.correction.error_feedback.ErrorFeedback"
    needs_constant_delay = True
    decay_forms: ClassVar[tuple[str, ...]] = ("A", "B", "C")

    decay_form: str = MISSING

    @property
    def state_copies(self) -> float:
        return 1.0

    def check(self, key: str) -> None:
        super().check(key)
        check_option(f"{key}.decay_form", self.decay_form, self.decay_forms)


@dataclass
class WeightPredictionConfig(StrengthConfig):
    """strength: lambda, the share of the last update that the prediction goes ahead by, for each update of delay."""

    correction = "asyncpp.correction.weight_prediction.WeightPrediction"
    needs_constant_delay = True

    @property
    def state_copies(self) -> float:
        return 1.0


@dataclass
class DelayCompensationConfig(StrengthConfig):
    """strength: lambda, or lambda_0 where ``adaptive``; ema: decay rate of the mean square; eps: added to it."""

    correction = "asyncpp.correction.dc_asgd.DelayCompensation"
    corrects_gradients = True

    adaptive: bool = MISSING
    ema: float = MISSING
    eps: float = MISSING

    @property
    def state_copies(self) -> float:
        return 1.0 if self.adaptive else 0.0

    def check(self, key: str) -> None:
        super().check(key)
        check_beta(f"{key}.ema", self.ema)
        check_positive(f"{key}.eps", self.eps)


@dataclass
class LRDampingConfig(StrengthConfig):
    """strength: exponent of the delay at the first step; horizon_fraction: share of the run after which it is 0."""

    correction = "asyncpp.correction.lr_damping.LRDamping"

    horizon_fraction: float = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        horizon = self.horizon_fraction
        require(0.0 < horizon <= 1.0, f"{key}.horizon_fraction", horizon, "expected a number in (0, 1]")


@dataclass
class NesterovConfig(StrengthConfig):
    """strength: gamma, the decay rate of the weights' velocity."""

    correction = "asyncpp.correction.nesterov.Nesterov"
    acts_without_delay = True

    @property
    def state_copies(self) -> float:
        return 1.0

    def check(self, key: str) -> None:
        check_beta(f"{key}.strength", self.strength)


@dataclass
class SyncStartConfig(ErrorFeedbackConfig):
    """sync_fraction: share of the run's steps that are synchronous; strength, decay_form: of EF after them."""

    correction = "asyncpp.correction.sync_start.SyncStart"

    sync_fraction: float = MISSING

    @property
    def state_copies(self) -> float:
        return super().state_copies if self.strength > 0.0 else 0.0

    def num_sync_steps(self, num_steps: int) -> int:
        return round(self.sync_fraction * num_steps)

    def check(self, key: str) -> None:
        super().check(key)
        check_fraction(f"{key}.sync_fraction", self.sync_fraction)
