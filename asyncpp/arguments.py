"""Commands without Hydra: ``key=value`` arguments become a dataclass; bad input is one clear line, with an exit code.

Those of analysis/ and benchmarks/, eval/fetch.py, asyncpp.checkpoint, export, schedule and trace, and the options of
asyncpp.sweep's actions. Commands that take the groups of conf/ go by asyncpp/hydra_command.py, and make dataclasses of
them by ``to_dataclass``, too.
"""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException, ValidationError
from yaml import YAMLError

from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, require

Options = TypeVar("Options")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)  # which ask a command to stop


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the command prints its usage, and does nothing else."""
    return not {"-h", "--help"}.isdisjoint(arguments)


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

    ``command`` returns one, too, or None for EXIT_DONE. A file that cannot be written or read is bad input; a disk that
    is full, or whatever else the system refuses, is EXIT_FAILED, and Ctrl-C EXIT_INTERRUPTED, without a traceback.
    """
    if asks_for_help(arguments):
        print(usage.strip())
        return EXIT_DONE
    try:
        return exit_code_of(lambda: command(parse_arguments(arguments, schema)) or EXIT_DONE)
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        place = error.filename2 or error.filename
        print(f"error: {place}: expected a file that can be read and written ({error.strerror})", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        place = error.filename2 or error.filename
        print(f"error: {place}: {error.strerror}" if place else f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted; the same command makes the rest", file=sys.stderr)
        return EXIT_INTERRUPTED


def stop_on_signals() -> None:
    """SIGTERM and SIGUSR2 stop this process as Ctrl-C does, even where a shell started it in the background."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)


def parse_arguments(
    arguments: Sequence[str], schema: type[Options], values: Mapping[str, Any] | None = None, prefix: str = ""
) -> Options:
    """The dataclass ``schema`` with ``values``, and then ``arguments``, in the place of its defaults.

    Raises ConfigError, with ``prefix`` before the key.
    """
    known = [field.name for field in fields(schema)]  # pyright: ignore[reportArgumentType]
    given = OmegaConf.create(dict(values or {}))
    for argument in arguments:
        key, equals, value = argument.partition("=")
        require(bool(equals), "argument", argument, f"expected key=value, with a key of {', '.join(known)}")
        require(key in known, f"{prefix}{key}", value, no_such_key(key, known))
        require(bool(value), f"{prefix}{key}", value, "expected a value after the equals sign")
        try:
            given = OmegaConf.merge(given, OmegaConf.from_dotlist([argument]))
        except YAMLError:
            raise ConfigError(f"{prefix}{key}", value, "expected a YAML value; is a bracket open?") from None
        except OmegaConfBaseException as error:
            raise ConfigError(f"{prefix}{key}", value, _first_sentence(error)) from None
    return to_dataclass(given, schema, prefix)


def to_dataclass(values: Any, schema: type[Options], prefix: str = "", where: str = "") -> Options:
    """``values``, nested containers or a DictConfig, as the dataclass ``schema``, types checked.

    Raises ConfigError, with ``prefix`` before the key and ``where`` after what is accepted.
    """
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))  # pyright: ignore[reportReturnType]
    except MissingMandatoryValue as error:
        key, value, accepted = error.full_key, "???", "expected a value"
    except ConfigKeyError as error:
        key = str(error.full_key)
        parent = OmegaConf.create(values)
        if key != str(error.key):
            parent = OmegaConf.select(parent, key.removesuffix(f".{error.key}"))
        siblings: Any = OmegaConf.to_container(parent)  # as they stand there, were they interpolations
        value = siblings[error.key]
        accepted = no_such_key(key, [str(name) for name in error.parent_node or ()])
    except OmegaConfBaseException as error:
        refused = error.value if isinstance(error, ValidationError) or error.value is not None else error.child_node
        key, value, accepted = error.full_key, "null" if refused is None else refused, _first_sentence(error)
    raise ConfigError(f"{prefix}{key}", value, f"{accepted}{where}")


def _first_sentence(error: OmegaConfBaseException) -> str:
    """Of OmegaConf's message; the rest of it is bookkeeping."""
    return str(error).splitlines()[0].lower()


def no_such_key(key: str, known: Sequence[str]) -> str:
    """What is accepted in the place of ``key``, the nearest first."""
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"no such key; {hint}accepted here: {', '.join(known)}"
