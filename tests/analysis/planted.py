"""Planted run folders: what asyncpp.train leaves behind, with losses that a test chose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from asyncpp.records import config_hash

# Validation losses by optimizer and condition: gaps of 0.8 and 0.1, of which EF recovers a half and three quarters.
PLANTED = {
    "adamw": {"sync": 4.4, "async": 5.2, "async_ef": 4.8},
    "muon": {"sync": 4.4, "async": 4.5, "async_ef": 4.425},
}
DELAY_AND_CORRECTION = {"sync": ("sync", "none"), "async": ("one_step", "none"), "async_ef": ("one_step", "ef")}
STALENESS = {"sync": 0, "one_step": 1, "constant": 2, "pipedream": 3}  # PipeDream's with four stages

PlantRun = Callable[..., Path]  # the fixture `plant`


def plant_run(
    runs_dir: Path,
    optimizer: str = "adamw",
    delay: str = "sync",
    correction: str = "none",
    seed: int = 0,
    val_loss: float | None = 4.0,
    metrics: list[dict[str, Any]] | None = None,
    folder: str | None = None,
    summary: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    sweep: str = "planted",
) -> Path:
    """Write one finished run folder of ``sweep`` below ``runs_dir`` and return it. Its summary is its configuration's.

    summary and config override entries: of summary.json by key, of config.yaml by dotted key.
    """
    tree = OmegaConf.create(
        {
            "model": {"name": "tiny", "num_layers": 4, "hidden_size": 96},
            "data": {"name": "sotu", "root": "data", "sequence_length": 64},
            "optimizer": {"name": optimizer, "lr": 3e-3, "betas": [0.9, 0.95]},
            "lr_schedule": {"name": "cosine", "lr_warmup_fraction": 0.1},
            "pipeline": {"name": "simulated", "num_stages": 1},
            "delay": {"name": delay} | ({} if delay == "pipedream" else {"updates": STALENESS[delay]}),
            "correction": {"name": correction} | ({"strength": 1.0} if correction == "ef" else {}),
            "logger": {"name": "jsonl"},
            "trainer": {"num_steps": 400, "batch_size": 16},
            "seed": seed,
            "runs_dir": str(runs_dir),
            "sweep_name": sweep,
        }
    )
    for key, value in (config or {}).items():
        OmegaConf.update(tree, key, value)
    scientific = {key: value for key, value in tree.items() if key not in ("runs_dir", "sweep_name", "logger")}
    values = {
        "status": "finished",
        "model": tree.model.name,
        "optimizer": tree.optimizer.name,
        "delay": tree.delay.name,
        "delay_varies": tree.delay.name == "pipedream",
        "correction": tree.correction.name,
        "pipeline": tree.pipeline.name,
        "seed": tree.seed,
        "config_hash": config_hash(OmegaConf.to_container(OmegaConf.create(scientific))),
        "num_steps": tree.trainer.num_steps,
        "tokens_seen": tree.trainer.num_steps * tree.trainer.batch_size * tree.data.sequence_length,
        "val_loss": val_loss,
        "staleness_updates": tree.delay.get("updates", STALENESS[delay]),
        "duration_s": 30.0,
        "commit": "0123abc",
        "sweep_name": sweep,
    } | (summary or {})
    name = folder or f"tiny-{optimizer}-{delay}-{correction}-seed{seed}-{values['config_hash']}"
    path = runs_dir / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(OmegaConf.to_yaml(tree))
    (path / "summary.json").write_text(json.dumps(values))
    if metrics is not None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    return path


def loss_rows(final_loss: float, num_steps: int = 400, eval_every: int | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a run whose loss falls from 7.6 to ``final_loss``."""

    def loss_after(num_updates: int) -> float:
        return final_loss + (7.6 - final_loss) * (1 - num_updates / num_steps) ** 4

    for step in range(num_steps):
        yield {"step": step, "train/loss": loss_after(step) + 0.1 * (step % 2), "optim/lr": 1e-3, "time/step_s": 0.1}
        if eval_every and (step + 1) % eval_every == 0:
            yield {"step": step + 1, "val/loss": loss_after(step + 1)}
