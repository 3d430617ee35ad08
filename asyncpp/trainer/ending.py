"""How a launch of a run ends: what training raises, and what each exception means for summary, exit code and user."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NamedTuple

from asyncpp.errors import EXIT_FAILED, EXIT_INTERRUPTED
from asyncpp.pipeline.runtime import ActionFailed
from asyncpp.records import RunIsLocked, Status
from asyncpp.trainer.stop import Stopped


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why in one line."""


class RankFailed(RuntimeError):
    """A rank that died, raised or hangs; the message names it, what it was doing, and the cause.

    details: its traceback, if it had one.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Ending(NamedTuple):
    """status: of the summary. cause: its ``error``, None for none. exit_code: of asyncpp.errors.

    message: what the user reads on standard error.
    """

    status: Status
    exit_code: int
    cause: Callable[[BaseException], str | None]
    message: Callable[[BaseException], str]


def _how_to_go_on(error: BaseException) -> str:
    step = error.step if isinstance(error, Stopped) else None
    saved = "" if step is None else f" after {step} updates, which are saved"
    return f"\ninterrupted{saved}; run the same command again to go on"


def _one_line(error: BaseException) -> str:
    details = error.details if isinstance(error, RankFailed) else ""
    return f"{details}error: {error}"


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip("\n")


INTERRUPTED = Ending(Status.INTERRUPTED, EXIT_INTERRUPTED, lambda error: None, _how_to_go_on)
EXPLAINED = Ending(Status.FAILED, EXIT_FAILED, str, _one_line)
UNEXPECTED = Ending(Status.FAILED, EXIT_FAILED, lambda error: f"{type(error).__name__}: {error}", _traceback)

# ConfigError is none of these: it is the user's to mend, and goes on to whoever called run().
ENDINGS: dict[type[BaseException], Ending] = {
    KeyboardInterrupt: INTERRUPTED,
    Stopped: INTERRUPTED,
    TrainingFailed: EXPLAINED,
    RankFailed: EXPLAINED,
    ActionFailed: EXPLAINED,
    RunIsLocked: EXPLAINED,
    BaseException: UNEXPECTED,
}


def ending_of(error: BaseException) -> Ending:
    """The entry of the nearest class of ``error``."""
    return next(ENDINGS[kind] for kind in type(error).__mro__ if kind in ENDINGS)
