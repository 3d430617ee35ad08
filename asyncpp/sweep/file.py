"""A sweep file: one of sweeps/, or one's own.

``${...}`` in it is OmegaConf's: another value of the file, or of the environment (``${oc.env:HOME}``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asyncpp.arguments import to_dataclass
from asyncpp.errors import ConfigError, check_option, require

SWEEPS = Path(__file__).parents[2] / "sweeps"

PAPER = "paper"  # as a scale: the one that is the paper's own


@dataclass
class ScaleChanges:
    """What a scale may give beside keys of a run. Each takes the place of the sweep's own.

    launcher: which option of conf/hydra/launcher starts its runs (``name``), and that option's keys, such as nodes.
    """

    seeds: list[int] | None = None
    grid: dict[str, list[Any]] | None = None
    cells: list[dict[str, Any]] | None = None
    launcher: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """A sweep at one size: every combination of a cell, a value of each key of ``grid`` and a seed.

    overrides: of every run. launcher: as in ScaleChanges; empty where the runs need nothing but processes here.
    """

    name: str
    overrides: dict[str, Any]
    seeds: list[int]
    grid: dict[str, list[Any]]
    cells: list[dict[str, Any]]
    launcher: dict[str, Any]


@dataclass
class SweepFile:
    """claim: what the sweep shows. paper: the table or figure that it stands for.

    grid: values of keys, every combination of them. cells: overrides that belong together.
    scales: sizes of the experiment, the first of which is the default; each holds overrides of all its runs and, under
    the names of ScaleChanges, what else differs. paper_scale: the one that is the paper's own, which the name ``paper``
    stands for. folder: whose runs these are, too: a sweep that contains another's runs shares its folder, and makes
    none of them twice; null is the sweep's own.
    """

    claim: str = MISSING
    paper: str = MISSING
    scales: dict[str, dict[str, Any]] = MISSING
    seeds: list[int] = MISSING
    grid: dict[str, list[Any]] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    paper_scale: str | None = None
    folder: str | None = None

    @property
    def scale_names(self) -> list[str]:
        """Every name that ``at`` takes."""
        return [*self.scales, *([PAPER] if self.paper_scale is not None else [])]

    def at(self, scale: str | None) -> Scale:
        """The sweep at ``scale``, or at the first. Raises ConfigError."""
        require(len(self.scales) > 0, "scales", self.scales, "expected at least one")
        accepted = f"expected one of {', '.join(self.scale_names)}"
        require(scale is None or scale in self.scale_names, "scale", scale, accepted)
        name = self.paper_scale if scale == PAPER and self.paper_scale else scale or next(iter(self.scales))
        check_option("paper_scale", name, self.scales)
        reserved = [field.name for field in fields(ScaleChanges)]
        given = self.scales[name]
        changes = to_dataclass({key: given[key] for key in reserved if key in given}, ScaleChanges, f"scales.{name}.")
        return Scale(
            name=name,
            overrides={key: value for key, value in given.items() if key not in reserved},
            seeds=self.seeds if changes.seeds is None else changes.seeds,
            grid=self.grid if changes.grid is None else changes.grid,
            cells=self.cells if changes.cells is None else changes.cells,
            launcher=changes.launcher,
        )

    def folder_of(self, name: str) -> str:
        """The sweep_name of its runs, where ``name`` is the sweep's own."""
        return self.folder or name


def load_sweep(name: str) -> SweepFile:
    """The sweep file ``name``: one of sweeps/, or a path that ends in .yaml. Raises ConfigError."""
    path = Path(name) if name.endswith(".yaml") else SWEEPS / f"{name}.yaml"
    require(path.is_file(), "sweep", name, f"expected one of {', '.join(sweep_names())}, or the path of a .yaml file")
    try:
        path.read_text(encoding="utf-8")
        values = OmegaConf.load(path)
    except (YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise ConfigError("sweep", name, f"expected a sweep file ({' '.join(str(error).split())})") from None
    require(isinstance(values, DictConfig), "sweep", name, "expected a sweep file, which is keys and values")
    return to_dataclass(values, SweepFile, where=f" (sweep file {name})")


def sweep_names() -> list[str]:
    """Of the files in sweeps/."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))
