"""Commands with Hydra: overrides of conf/ in, typed groups, one clear line for bad input, an exit code out.

asyncpp.train and eval/run.py, which hydra.main starts; asyncpp.plan and asyncpp.data.prepare and inspect, which compose
once; the overrides of asyncpp.sweep. Commands with a few options of their own go by asyncpp/arguments.py.
"""

from __future__ import annotations

import math
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asyncpp import arguments
from asyncpp.errors import EXIT_DONE, ConfigError, require
from asyncpp.records import flattened

CONF = Path(__file__).parents[1] / "conf"

HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def run_hydra_command(
    usage: str, overrides: Sequence[str], config_name: str, command: Callable[[DictConfig], int]
) -> int:
    """Run ``command`` with what ``overrides`` make of a file of conf/, or print ``usage``. Returns an exit code."""
    if arguments.asks_for_help(overrides):
        print(usage.strip())
        return EXIT_DONE
    return hydra_exit_code_of(lambda: command(compose_overrides(overrides, config_name)), overrides)


def hydra_exit_code_of(command: Callable[[], int], overrides: Sequence[str]) -> int:
    """arguments.exit_code_of where Hydra, too, may refuse ``overrides`` while ``command`` runs."""

    def explained() -> int:
        try:
            return command()
        except HYDRA_ERRORS as error:
            raise explain(error, overrides) from None
        except (ValueError, TypeError) as error:
            if isinstance(error, ConfigError) or not _raised_by_hydra(error):
                raise
            raise explain(error, overrides) from None

    return arguments.exit_code_of(explained)


def compose_overrides(overrides: Sequence[str], config_name: str = "train", with_hydra: bool = False) -> DictConfig:
    """What Hydra composes from conf/ and ``overrides``, with its own node if that is wanted. Raises ConfigError."""
    inside_hydra = GlobalHydra.instance().is_initialized()  # hydra.main has done it, for the same folder
    try:
        with nullcontext() if inside_hydra else initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose(config_name, overrides=list(overrides), return_hydra_config=with_hydra)
        require_finite(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
        return composed
    except HYDRA_ERRORS as error:
        raise explain(error, overrides) from None


def as_override(key: str, value: Any) -> str:
    """``key=value`` for Hydra's command line: what its grammar could misread is quoted."""
    if value is None:
        return f"{key}=null"
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if not isinstance(value, str) or re.fullmatch(r"([A-Za-z_]|\.*/)[\w./-]*", value, re.ASCII):
        return f"{key}={value}"
    escaped = re.sub(r"(\\*)'", r"\1\1\'", value)  # a quote, and the backslashes before it
    return f"{key}='{escaped}'"


def require_finite(composed: DictConfig) -> None:
    """Raise ConfigError for a number, anywhere below ``composed``, that is infinite or not a number."""
    values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    for key, value in flattened(values):
        accepted = "expected finite numbers" if isinstance(value, list) else "expected a finite number"
        require(_is_finite(value), key, value, accepted)


def _is_finite(value: Any) -> bool:
    """Of a list: all that is in it."""
    if isinstance(value, list | dict):
        return all(_is_finite(part) for part in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def require_known(composed: DictConfig, known: Sequence[str]) -> None:
    """Raise ConfigError for a key at the top of ``composed``, but for Hydra's own, that is not one of ``known``."""
    for key in composed:
        require(key in (*known, "hydra"), str(key), composed[key], arguments.no_such_key(str(key), known))


def typed(composed: DictConfig, key: str, schema: type | None = None) -> Any:
    """The node at ``key`` as its dataclass: the one that it names, or ``schema``."""
    node = composed[key]
    require(isinstance(node, DictConfig), key, node, "expected the name of one of its options, or key=value below it")
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    target = values.pop("_target_", None)
    schema = schema or _dataclass_of(f"{key}._target_", str(target))
    return arguments.to_dataclass(values, schema, f"{key}.")


def _dataclass_of(key: str, target: str) -> type:
    """The dataclass at the import path ``target``. Raises ConfigError."""
    try:
        schema = pkgutil.resolve_name(target)
    except Exception as error:  # whatever importing it raises
        raise ConfigError(key, target, f"expected the import path of a dataclass ({type(error).__name__})") from None
    require(isinstance(schema, type) and is_dataclass(schema), key, target, "expected the import path of a dataclass")
    return schema


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


def _raised_by_hydra(error: Exception) -> bool:
    """Whether the innermost frame is Hydra's: it reports some of what it is given as a plain ValueError."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").partition(".")[0] == "hydra"


def _accepted_beside(key: str, parent: object) -> str:
    known = [str(name) for name in parent if name not in ("_target_", "hydra")] if isinstance(parent, Mapping) else []
    return arguments.no_such_key(key, known)


def _value_of(key: str, overrides: Sequence[str]) -> str:
    """The value that ``overrides`` give to ``key``."""
    values = dict(override.lstrip("+~").split("=", 1) for override in overrides if "=" in override)
    return values.get(key, "")
