"""The knobs of every correction, and what they may be. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from asyncpp.errors import require


@dataclass
class CorrectionConfig:
    """An entry of conf/correction."""

    correction: ClassVar[str] = "asyncpp.correction.base.Correction"  # import path of what this configures

    name: str = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""


@dataclass
class ErrorFeedbackConfig(CorrectionConfig):
    """strength: lambda, the share of the last error that is added back; decay_form: see error_feedback.py."""

    correction = "asyncpp.correction.error_feedback.ErrorFeedback"
    decay_forms: ClassVar[tuple[str, ...]] = ("A", "B", "C")

    strength: float = MISSING
    decay_form: str = MISSING

    def check(self, key: str) -> None:
        require(self.strength >= 0.0, f"{key}.strength", self.strength, "expected zero or more")
        accepted = f"expected one of {', '.join(self.decay_forms)}"
        require(self.decay_form in self.decay_forms, f"{key}.decay_form", self.decay_form, accepted)
