"""A planted folder with every sweep that figures, tables and claims are made of, its losses by simple formulas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planted import DELAY_AND_CORRECTION, PLANTED, loss_rows, plant_run

SEEDS = (0, 1)
SYNC_LOSS = 4.4
LAYERS = ("embedding", "layers.0", "layers.1", "norm", "head")


def plant_all(runs_dir: Path) -> Path:
    """Every sweep below ``runs_dir``, which is returned."""
    for sweep in (plant_optimizers, plant_moe, plant_momentum, plant_depth, plant_learning_rate, plant_batch_size):
        sweep(runs_dir)
    plant_initial_std(runs_dir)
    plant_strength(runs_dir)
    plant_corrections(runs_dir)
    plant_probes(runs_dir)
    return runs_dir


def plant_optimizers(runs_dir: Path) -> None:
    for optimizer, losses in PLANTED.items():
        for condition, loss in losses.items():
            _plant(runs_dir, "table1_optimizers", optimizer, condition, loss, metrics=True)


def plant_moe(runs_dir: Path) -> None:
    model = {"model.name": "tiny_moe"}
    for condition, loss in PLANTED["muon"].items():
        _plant(runs_dir, "table3_moe", "muon", condition, loss, config=model)


def plant_momentum(runs_dir: Path) -> None:
    """AdamW's gap is 10 (1 - beta1)^1: 2.0, 1.0 and 0.2; Muon's half of it."""
    for beta in (0.8, 0.9, 0.98):
        for condition, gap in (("sync", 0.0), ("async", 10 * (1 - beta))):
            betas = {"optimizer.betas": [beta, 0.95]}
            _plant(runs_dir, "figure4_momentum", "adamw", condition, SYNC_LOSS + gap, config=betas)
            momentum = {"optimizer.betas": None, "optimizer.momentum": beta}
            _plant(runs_dir, "figure4_momentum", "muon", condition, SYNC_LOSS + gap / 2, config=momentum)


def plant_depth(runs_dir: Path) -> None:
    """2BW's gap is 0.1 at every depth P, PipeDream's (P - 1) / 10."""
    for num_stages in (1, 2, 4, 8):
        config = {"pipeline.num_stages": num_stages}
        _plant(runs_dir, "figure6_pipedream", "muon", "async", SYNC_LOSS + 0.1, config=config)
        late = {"staleness_updates": num_stages - 1}
        loss = SYNC_LOSS + (num_stages - 1) / 10
        _plant(runs_dir, "figure6_pipedream", "muon", "pipedream", loss, config, late)


def plant_learning_rate(runs_dir: Path) -> None:
    """The best rate is 3e-3, and the gap is a hundred times the rate; SOAP has no late runs."""
    for lr in (1e-3, 3e-3, 6e-3):
        loss = SYNC_LOSS + 200 * abs(lr - 3e-3)
        config = {"optimizer.lr": lr}
        _plant(runs_dir, "appendix_a_learning_rate", "adamw", "sync", loss, config)
        _plant(runs_dir, "appendix_a_learning_rate", "adamw", "async", loss + 100 * lr, config)
        _plant(runs_dir, "appendix_a_learning_rate", "soap", "sync", loss, config)


def plant_batch_size(runs_dir: Path) -> None:
    """The gap is a hundredth of the batch's sequences."""
    for batch_size, num_steps in ((4, 1600), (16, 400), (64, 100)):
        config = {"trainer.batch_size": batch_size, "trainer.num_steps": num_steps}
        for condition, gap in (("sync", 0.0), ("async", batch_size / 100)):
            loss = SYNC_LOSS + 1 / batch_size + gap
            _plant(runs_dir, "appendix_a_batch_size", "adamw", condition, loss, config)


def plant_initial_std(runs_dir: Path) -> None:
    """The gap is a hundredth over the standard deviation."""
    for std in (0.02, 0.05, 0.1):
        for condition, gap in (("sync", 0.0), ("async", 0.01 / std)):
            _plant(runs_dir, "initial_std", "adamw", condition, SYNC_LOSS + gap, config={"model.init_std": std})


def plant_strength(runs_dir: Path) -> None:
    """A delay costs 0.4, and strength lambda wins back 0.3 lambda, at z 0.05 more."""
    _plant(runs_dir, "strength", "muon", "sync", SYNC_LOSS)
    _plant(runs_dir, "strength", "muon", "async", SYNC_LOSS + 0.4)
    for strength in (0.5, 1.0):
        loss = SYNC_LOSS + 0.4 - 0.3 * strength
        z = {"val_loss_z": loss - 0.05}
        _plant(runs_dir, "strength", "muon", "async_ef", loss, {"correction.strength": strength}, z)


def plant_corrections(runs_dir: Path) -> None:
    """AdamW and Muon lose 0.3 with Nesterov's look-ahead and 0.1 with a synchronous start."""
    for optimizer, losses in PLANTED.items():
        for correction, gap in (("nesterov", 0.3), ("sync_start", 0.1)):
            _plant(runs_dir, "table1_optimizers", optimizer, f"async_{correction}", losses["sync"] + gap)


def plant_probes(runs_dir: Path) -> None:
    for optimizer, cosine in (("adamw", 0.4), ("muon", 0.9)):
        for seed in SEEDS:
            rows = list(probe_rows(cosine))
            folder = runs_dir / "probes"
            plant_run(folder, optimizer, "one_step", seed=seed, sweep="probes", val_loss=5.0, metrics=rows)


def probe_rows(cosine: float) -> Iterator[dict[str, Any]]:
    """A row every 20 steps; layers differ by 0.01 from one to the next, from ``cosine`` up."""
    for step in range(0, 400, 20):
        probed = {f"probe/gradient_cosine/{layer}": cosine + index / 100 for index, layer in enumerate(LAYERS)}
        probed |= {f"probe/gradient_norm_ratio/{layer}": 1.1 for layer in LAYERS}
        if step > 0:
            probed |= {f"probe/update_cosine/{layer}": 0.8 for layer in LAYERS}
        yield {"step": step, "train/loss": 5.0, **probed}


def _plant(
    runs_dir: Path,
    sweep: str,
    optimizer: str,
    condition: str,
    loss: float,
    config: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    metrics: bool = False,
) -> None:
    """A run for each of SEEDS, which shift the losses by 0.02 from one to the next."""
    delay, correction = DELAY_AND_CORRECTION.get(condition, (condition, "none"))
    if condition.startswith("async_"):
        delay, correction = "one_step", condition.removeprefix("async_")
    for seed in SEEDS:
        val_loss = loss + 0.02 * seed
        shifted = summary
        if summary and "val_loss_z" in summary:
            shifted = summary | {"val_loss_z": summary["val_loss_z"] + 0.02 * seed}
        rows = list(loss_rows(val_loss, eval_every=50)) if metrics else None
        plant_run(
            runs_dir / sweep,
            optimizer,
            delay,
            correction,
            seed,
            val_loss,
            metrics=rows,
            sweep=sweep,
            config=config,
            summary=shifted,
        )
