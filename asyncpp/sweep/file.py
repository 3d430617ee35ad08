"""A sweep file: one of sweeps/, or one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asyncpp.errors import ConfigError, require

SWEEPS = Path(__file__).parents[2] / "sweeps"


@dataclass
class SweepFile:
    """claim: what the sweep shows. paper: the table or figure that it stands for.

    A sweep is every combination of a cell, a value of each key of ``grid`` and a seed. Cells and scales are overrides;
    ``scales`` has one entry a size of the experiment, the first of which is the default.
    """

    claim: str = MISSING
    paper: str = MISSING
    seeds: list[int] = MISSING
    grid: dict[str, list[Any]] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    scales: dict[str, dict[str, Any]] = MISSING


def load_sweep(name: str) -> SweepFile:
    """The sweep file ``name``: one of sweeps/, or a path that ends in .yaml. Raises ConfigError."""
    path = Path(name) if name.endswith(".yaml") else SWEEPS / f"{name}.yaml"
    names = ", ".join(sorted(sweep.stem for sweep in SWEEPS.glob("*.yaml")))
    require(path.is_file(), "sweep", name, f"expected one of {names}, or the path of a .yaml file")
    try:
        path.read_text(encoding="utf-8")
        merged = OmegaConf.merge(OmegaConf.structured(SweepFile), OmegaConf.load(path))
        return OmegaConf.to_object(merged)  # pyright: ignore[reportReturnType]
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise ConfigError("sweep", name, f"expected a sweep file ({' '.join(str(error).split())})") from None
