"""The one error that a user's input raises, and the exit codes of every asyncpp command."""

from __future__ import annotations

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
