"""The configuration of a run that was made before, from its run folder. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asyncpp import records
from asyncpp.config import GROUPS, SCALARS, Config
from asyncpp.errors import ConfigError, require
from asyncpp.hydra_command import typed
from asyncpp.trainer.config import TrainerConfig


def read_config(key: str, folder: Path) -> Config:
    """The configuration that config.yaml of the run folder ``folder`` holds, typed; it was checked for the run.

    Raises ConfigError for ``key``, whose value ``folder`` is, and for a key that this version has and the run had not.
    """
    path = folder / records.CONFIG_FILE
    require(path.is_file(), key, folder, f"expected a run's folder, with a {records.CONFIG_FILE}")
    try:
        saved = OmegaConf.load(path)
        require(isinstance(saved, DictConfig), key, folder, f"{path} is not a run's configuration")
        values: dict[str, Any] = OmegaConf.to_container(saved)  # type: ignore[assignment]
        for group in GROUPS:
            target = str(values[group]["_target_"])
            ours = target.startswith("asyncpp.")  # a file says what is imported
            require(ours, key, folder, f"{path} has {group}._target_={target}, which is none of asyncpp's")
        composed = OmegaConf.create(values)
        groups: dict[str, Any] = {group: typed(composed, group) for group in GROUPS}
        scalars = {name: values[name] for name in SCALARS}
        return Config(**groups, trainer=typed(composed, "trainer", TrainerConfig), **scalars)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException, KeyError, TypeError) as error:
        raise ConfigError(key, folder, f"{path} is not a run's configuration ({type(error).__name__})") from None
