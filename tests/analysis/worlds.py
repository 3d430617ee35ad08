"""Runs of a world in which every claim of the paper is true by a known margin, as planted folders of all sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from planted import DELAY_AND_CORRECTION, plant_run

SEEDS = (0, 1, 2)
SYNC_LOSS = 4.4
SEED_SPREAD = 0.05  # which sync and async share
NOISE = 0.002  # which they do not
GAPS = {"adamw": 0.8, "mars": 0.3, "muon": 0.03, "normuon": 0.03, "soap": 0.05, "adan": 0.02, "lion": 0.06}
SHARE = 0.7  # that EF recovers
MOMENTUM_GAPS = {0.8: 0.9, 0.9: 0.8, 0.95: 0.7, 0.98: 0.568}  # 0.1 less for each doubling of 1 / (1 - momentum)
MOMENT_GAPS = {"first": 0.8, "second": 0.1}
BATCHES = {4: (0.2, 4.6), 64: (0.5, 4.3)}  # gap and synchronous loss
PIPEDREAM_LOSS_A_STAGE = 0.02


def plant_world(runs_dir: Path) -> Path:
    """Write every run, and return the folder."""
    noise = np.random.default_rng(0)
    for values in _cells():
        loss = values.pop("loss")
        for seed in SEEDS:
            val_loss = loss + SEED_SPREAD * (seed - 1) + float(noise.normal(0.0, values.get("noise", NOISE)))
            own = {key: value for key, value in values.items() if key != "noise"}
            folder = f"{own['sweep']}/{len(list(runs_dir.glob('*/*')))}"
            plant_run(runs_dir, seed=seed, val_loss=val_loss, folder=folder, **own)
    return runs_dir


def _cells() -> Iterator[dict[str, Any]]:
    for optimizer, gap in GAPS.items():
        yield from _conditions(gap, sweep="table1_optimizers", optimizer=optimizer)
    moe = {"summary": {"model": "tiny_moe"}, "config": {"model.name": "tiny_moe"}, "noise": 0.0005}
    yield from _conditions(0.06, share=1.0, sweep="table3_moe", optimizer="muon", **moe)
    for momentum, gap in MOMENTUM_GAPS.items():
        config = {"optimizer.betas": [momentum, 0.95]}
        yield from list(_conditions(gap, sweep="figure4_momentum", config=config))[:2]
    for num_stages in (1, 4, 16):
        cell = {"sweep": "figure6_pipedream", "config": {"pipeline.num_stages": num_stages}}
        yield cell | {"loss": SYNC_LOSS + 0.03, "delay": "one_step"}
        loss = SYNC_LOSS + PIPEDREAM_LOSS_A_STAGE * (num_stages - 1)
        yield cell | {"loss": loss, "delay": "pipedream", "summary": {"staleness_updates": num_stages - 1}}
    for batch_size, (gap, sync) in BATCHES.items():
        config = {"trainer.batch_size": batch_size, "trainer.num_steps": 6400 // batch_size}
        cells = _conditions(gap, sync=sync, sweep="appendix_a_batch_size", optimizer="muon", config=config)
        yield from list(cells)[:2]
    yield {"sweep": "moments", "loss": SYNC_LOSS}
    for moment, gap in MOMENT_GAPS.items():
        config = {"optimizer.delayed_moment": moment}
        cell = {"sweep": "moments", "optimizer": "adamw_split", "delay": "one_step", "config": config}
        yield cell | {"loss": SYNC_LOSS + gap}


def _conditions(gap: float, sync: float = SYNC_LOSS, share: float = SHARE, **values: Any) -> Iterator[dict[str, Any]]:
    losses = {"sync": sync, "async": sync + gap, "async_ef": sync + (1.0 - share) * gap}
    for name, loss in losses.items():
        delay, correction = DELAY_AND_CORRECTION[name]
        yield {"delay": delay, "correction": correction, "loss": loss, **values}
