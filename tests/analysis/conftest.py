"""Fixtures that plant run folders; planted.py writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import DELAY_AND_CORRECTION, PLANTED, PlantRun, loss_rows, plant_run


@pytest.fixture
def plant(tmp_path: Path) -> PlantRun:
    """plant_run into the folder ``runs`` of this test."""
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    return lambda **values: plant_run(runs_dir, **values)


@pytest.fixture
def planted_demo(tmp_path: Path, plant: PlantRun) -> Path:
    """PLANTED with three seeds, which shift all losses of a seed alike by -0.02, 0 and 0.02."""
    for optimizer, losses in PLANTED.items():
        for condition, loss in losses.items():
            delay, correction = DELAY_AND_CORRECTION[condition]
            for seed in range(3):
                val_loss = loss + 0.02 * (seed - 1)
                rows = list(loss_rows(val_loss))
                plant(
                    optimizer=optimizer, delay=delay, correction=correction, seed=seed, val_loss=val_loss, metrics=rows
                )
    return tmp_path / "runs"
