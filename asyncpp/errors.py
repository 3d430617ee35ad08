"""The one error that a user's input raises, the checks that raise it, and the exit codes of every asyncpp command."""

from __future__ import annotations

import math
from collections.abc import Collection

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 75


class ConfigError(ValueError):
    """A configuration value that cannot be used.

    The message is one line: the key, the value that was given, and what would be accepted.
    Commands print it without a traceback and leave with ``EXIT_BAD_INPUT``.
    """

    def __init__(self, key: str, value: object, accepted: str) -> None:
        super().__init__(f"{key}={value}: {accepted}")
        self.key = key
        self.value = value
        self.accepted = accepted


def require(condition: bool, key: str, value: object, accepted: str) -> None:
    """Raise ConfigError(key, value, accepted) unless ``condition`` holds."""
    if not condition:
        raise ConfigError(key, value, accepted)


def check_positive(key: str, value: float) -> None:
    """Raise ConfigError unless ``value`` is positive and finite."""
    require(0.0 < value < math.inf, key, value, "expected a positive number")


def check_not_negative(key: str, value: float) -> None:
    """Raise ConfigError unless ``value`` is zero, or positive and finite."""
    require(0.0 <= value < math.inf, key, value, "expected zero or more")


def check_count(key: str, value: int) -> None:
    """Raise ConfigError unless there is at least one."""
    require(value >= 1, key, value, "expected 1 or more")


def check_fraction(key: str, value: float) -> None:
    """Raise ConfigError unless ``value`` is a share of a whole, none and all of it included."""
    require(0.0 <= value <= 1.0, key, value, "expected a number in [0, 1]")


def check_beta(key: str, value: float) -> None:
    """Raise ConfigError unless ``value`` can be the decay rate of an average."""
    require(0.0 <= value < 1.0, key, value, "expected a number in [0, 1)")


def check_option(key: str, value: str, options: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``options``."""
    require(value in options, key, value, f"expected one of {', '.join(options)}")
