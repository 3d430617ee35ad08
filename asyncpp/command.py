"""What every command line has in common: Hydra overrides in, one clear line for bad input, an exit code out."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from asyncpp.errors import EXIT_BAD_INPUT, ConfigError, require

CONF = Path(__file__).parents[1] / "conf"

Options = TypeVar("Options")
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def exit_code_of(command: Callable[[], int], overrides: Sequence[str]) -> int:
    """Run ``command`` and turn what a user got wrong into one line on standard error and EXIT_BAD_INPUT."""
    try:
        return command()
    except ConfigError as error:
        message = str(error)
    except HYDRA_ERRORS as error:
        message = str(explain(error, overrides))
    except ValueError as error:
        if not str(error).startswith("Config group override"):  # how Hydra words group=3
            raise
        message = str(explain(error, overrides))
    print(f"error: {message}", file=sys.stderr)
    return EXIT_BAD_INPUT


def compose_overrides(overrides: Sequence[str], config_name: str = "train") -> DictConfig:
    """What Hydra composes from conf/ and ``overrides``. Raises ConfigError."""
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose(config_name, overrides=list(overrides))
    except HYDRA_ERRORS as error:
        raise explain(error, overrides) from None


def parse_arguments(arguments: Sequence[str], schema: type[Options]) -> Options:
    """``key=value`` arguments as the dataclass ``schema``, for commands that are not runs. Raises ConfigError."""
    for argument in arguments:
        require("=" in argument, "argument", argument, "expected key=value")
        try:
            OmegaConf.from_dotlist([argument])
        except yaml.YAMLError:
            raise ConfigError("argument", argument, "expected a YAML value after the =") from None
    defaults = OmegaConf.structured(schema)
    try:
        return OmegaConf.to_object(OmegaConf.merge(defaults, OmegaConf.from_dotlist(list(arguments))))  # type: ignore
    except ConfigKeyError as error:
        key = str(error.full_key)
        raise ConfigError(key, _value_of(key, arguments), _accepted_beside(key, defaults)) from None
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        raise ConfigError(key, _value_of(key, arguments), str(error).splitlines()[0].lower()) from None


def typed(composed: DictConfig, key: str, schema: type | None = None) -> Any:
    """The node at ``key`` as its dataclass: the one that it names, or ``schema``."""
    node = composed[key]
    require(isinstance(node, DictConfig), key, node, "expected the name of one of its options, or key=value below it")
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    target = values.pop("_target_", None)
    schema = schema or get_class(str(target))
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except MissingMandatoryValue as error:
        raise ConfigError(f"{key}.{error.full_key}", "???", "expected a value") from None
    except OmegaConfBaseException as error:
        where = f"{key}.{error.full_key}"
        raise ConfigError(where, OmegaConf.select(composed, where), _expected(error)) from None


def explain(error: Exception, overrides: Sequence[str]) -> ConfigError:
    """An error of Hydra about ``overrides`` as key, value and what is accepted."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return ConfigError(group, option, f"expected one of {', '.join(error.options)}")
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        key = str(cause.full_key)
        return ConfigError(key, _value_of(key, overrides), _accepted_beside(key, cause.parent_node))
    return ConfigError("command line", " ".join(overrides), " ".join(str(error).split()))


def _accepted_beside(key: str, parent: object) -> str:
    known = [str(name) for name in parent if name not in ("_target_", "hydra")] if isinstance(parent, Mapping) else []
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"no such key; {hint}accepted here: {', '.join(known)}"


def _value_of(key: str, overrides: Sequence[str]) -> str:
    """The value that ``overrides`` give to ``key``."""
    values = dict(override.lstrip("+~").split("=", 1) for override in overrides if "=" in override)
    return values.get(key, "")


def _expected(error: OmegaConfBaseException) -> str:
    """The first sentence of OmegaConf's message, from which the rest is bookkeeping."""
    if isinstance(error, ConfigKeyError):
        return "no such key"
    return str(error).splitlines()[0].lower()
