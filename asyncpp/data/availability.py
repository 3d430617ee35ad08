"""Whether the tokens that a run reads are there, and which command prepares them where they are not. No torch here."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig

from asyncpp.data.config import DataConfig, HubConfig, MixtureConfig, SourceConfig
from asyncpp.data.manifest import Manifest
from asyncpp.errors import ConfigError
from asyncpp.hydra_command import CONF, as_override, compose_overrides, typed
from asyncpp.records import flattened

PREPARE = "python -m asyncpp.data.prepare"
KEYS_OF_A_RUN = ("sequence_length", "num_validation_sequences", "document_mask")  # they change no prepared token


def require_available(config: DataConfig, num_tokens: int) -> None:
    """Raise ConfigError, which names the command, unless the tokens are prepared or a run may prepare them itself.

    A run prepares what needs no download. num_tokens: training tokens that the run reads.
    """
    for folder, command in _missing(config, num_tokens):
        raise ConfigError("data.root", config.root, f"{folder} is not prepared; run first: {command}")


def availability(config: DataConfig, num_tokens: int) -> str:
    """One line on the tokens of a run that reads ``num_tokens``. Raises ConfigError if they were made otherwise."""
    missing = _missing(config, num_tokens)
    if missing:
        return "; ".join(f"{folder} is not prepared; run first: {command}" for folder, command in missing)
    folders = _folders(config)
    if isinstance(config, SourceConfig):
        if not config.folder.exists():
            return f"{config.folder} is not prepared; the run prepares it, without a download"
        Manifest.read(config.folder).check(config)
    found = sum(Manifest.read(folder).splits["train"].num_tokens for folder in folders)
    names = ", ".join(map(str, folders))
    return (
        f"{names}: {found:,} training tokens, of which the run reads {num_tokens:,} ({num_tokens / found:.2g} epochs)"
    )


def prepare_command(config: SourceConfig, num_tokens: int) -> str:
    """The command that prepares what ``config`` describes: the option of conf/data, and every value that differs.

    Of a hub's endless text it takes what a run that reads ``num_tokens`` needs, rounded up to two digits.
    """
    option = _option_of(config)
    default = dict(flattened(asdict(_shipped(option))))
    changed = {key: value for key, value in flattened(asdict(config)) if value != default[key]}
    settings = [as_override(f"data.{key}", value) for key, value in changed.items() if key not in KEYS_OF_A_RUN]
    if isinstance(config, HubConfig) and config.budget_tokens is None:
        settings.append(f"data.budget_tokens={_rounded_up(num_tokens)}")
    return " ".join([PREPARE, f"data={option}", *map(_for_a_shell, settings)])


def _missing(config: DataConfig, num_tokens: int) -> list[tuple[Path, str]]:
    """Folders that a run of ``config`` cannot make, and the commands that do."""
    if isinstance(config, MixtureConfig):
        total = sum(config.weights.values())
        return [
            (config.folder_of(name), _command_of_part(config, name, math.ceil(num_tokens * weight / total)))
            for name, weight in config.weights.items()
            if not config.folder_of(name).exists()
        ]
    if isinstance(config, SourceConfig) and config.needs_download() and not config.folder.exists():
        return [(config.folder, prepare_command(config, num_tokens))]
    return []


def _command_of_part(mixture: MixtureConfig, name: str, num_tokens: int) -> str:
    """The command for a source of a mixture, which knows no more of it than its name."""
    if (CONF / "data" / f"{name}.yaml").exists():
        part = _shipped(name)
        if isinstance(part, SourceConfig):
            part.root = mixture.root
            return prepare_command(part, num_tokens)
    settings = [as_override("data.root", mixture.root)] if mixture.root != _shipped("local").root else []
    return " ".join(
        [PREPARE, "data=local", f"data.name={name}", *map(_for_a_shell, settings), "data.path=<file or folder>"]
    )


def _folders(config: DataConfig) -> list[Path]:
    names = list(config.weights) if isinstance(config, MixtureConfig) else [config.name]
    return [config.folder_of(name) for name in names]


def _option_of(config: SourceConfig) -> str:
    """The option of conf/data that ``config`` comes from: that of its name, or the first of its kind."""
    kind = f"{type(config).__module__}.{type(config).__qualname__}"
    options = sorted(path.stem for path in (CONF / "data").glob("*.yaml"))
    same_kind = [option for option in options if _composed(option).data["_target_"] == kind]
    return config.name if config.name in same_kind else same_kind[0]


def _shipped(option: str) -> DataConfig:
    return typed(_composed(option), "data")


def _composed(option: str) -> DictConfig:
    return compose_overrides([f"data={option}"], "prepare")


def _for_a_shell(setting: str) -> str:
    """``setting`` as a shell reads it back; a value that Hydra wants in single quotes gets double ones around it."""
    plain = re.search(r"[\"$`\\!]", setting) is None
    return f'"{setting}"' if "'" in setting and plain else shlex.quote(setting)


def _rounded_up(count: int) -> str:
    """More than ``count``, in two digits, such as 2.1e10."""
    exponent = int(math.log10(count))
    return f"{math.ceil((count + 1) / 10 ** (exponent - 1)) / 10}e{exponent}"
