"""Commands without Hydra: ``key=value`` arguments become a dataclass; bad input is one clear line, with an exit code.

Those of analysis/ and benchmarks/, eval/fetch.py, asyncpp.checkpoint, export, schedule and trace, and the options of
asyncpp.sweep's actions. Commands that take the groups of conf/ go by asyncpp/hydra_command.py.
"""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, ConfigError, require

Options = TypeVar("Options")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)  # which ask a command to stop


def exit_code_of(command: Callable[[], int]) -> int:
    """Run ``command``; what a user got wrong becomes one line on standard error and EXIT_BAD_INPUT."""
    try:
        return command()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def run_command(
    usage: str, arguments: Sequence[str], schema: type[Options], command: Callable[[Options], int | None]
) -> int:
    """Run ``command`` with what ``arguments`` make of ``schema``, or print ``usage``. Returns an exit code.

    ``command`` returns one, too, or None for EXIT_DONE. A file that cannot be written or read is bad input; Ctrl-C is
    EXIT_INTERRUPTED, without a traceback.
    """
    if {"-h", "--help"} & set(arguments):
        print(usage.strip())
        return EXIT_DONE
    try:
        return exit_code_of(lambda: command(parse_arguments(arguments, schema)) or EXIT_DONE)
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        place = error.filename2 or error.filename
        print(f"error: {place}: expected a file that can be read and written ({error.strerror})", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; the same command makes the rest", file=sys.stderr)
        return EXIT_INTERRUPTED


def stop_on_signals() -> None:
    """SIGTERM and SIGUSR2 stop this process as Ctrl-C does, even where a shell started it in the background."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)


def parse_arguments(arguments: Sequence[str], schema: type[Options]) -> Options:
    """The dataclass ``schema`` with ``arguments`` in the place of its defaults. Raises ConfigError."""
    known = [field.name for field in fields(schema)]  # pyright: ignore[reportArgumentType]
    options = OmegaConf.structured(schema)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        require(bool(equals), "argument", argument, f"expected key=value, with a key of {', '.join(known)}")
        require(key in known, key, value, no_such_key(key, known))
        require(bool(value), key, value, "expected a value after the equals sign")
        try:
            options = OmegaConf.merge(options, OmegaConf.from_dotlist([argument]))
            OmegaConf.select(options, key)  # resolves an interpolation, which no option may be
        except YAMLError:
            raise ConfigError(key, value, "expected a YAML value; is a bracket open?") from None
        except OmegaConfBaseException as error:
            raise ConfigError(key, value, str(error).splitlines()[0].lower()) from None
    try:
        return OmegaConf.to_object(options)  # pyright: ignore[reportReturnType]
    except MissingMandatoryValue as error:
        raise ConfigError(str(error.full_key), "???", "expected a value") from None


def no_such_key(key: str, known: Sequence[str]) -> str:
    """What is accepted in the place of ``key``, the nearest first."""
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"no such key; {hint}accepted here: {', '.join(known)}"
