"""A plan's document for a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from asyncpp.schedule.report import brief

HEADINGS = {
    "weights": "weights",
    "weight_versions": "versions",
    "gradients": "grads",
    "optimizer_state": "optim",
    "correction_state": "corr",
    "saved_activations": "saved",
    "buffers": "buffers",
}


def print_plan(document: dict[str, Any]) -> None:
    """What report.plan returns, as two tables and whether it fits."""
    console = Console(highlight=False)
    console.print(_summary(document))
    console.print(_memory(document))
    console.print(_verdict(document))


def _summary(document: dict[str, Any]) -> Table:
    d = document
    updates = "" if d["num_updates_per_step"] == 1 else f" in {d['num_updates_per_step']} updates"
    rows = {
        "model": [
            f"{d['model']}: {_large(d['num_parameters'])} parameters, {_large(d['num_active_parameters'])} active, "
            f"{_large(d['num_non_embedding_parameters'])} without embeddings"
        ],
        "method": [f"optimizer {d['optimizer']}, correction {d['correction']}, {d['precision']}"],
        "pipeline": [
            f"{d['pipeline']}: {d['num_stages']} stages, {d['data_parallel']} replicas, "
            f"{d['num_ranks']} ranks of {d['hardware']}",
            f"staleness {brief(d['staleness_updates'])}; weight versions {_held(d, 'weight_versions')}; "
            f"gradient sums {_held(d, 'gradient_sums')}; micro-batches saved {_held(d, 'micro_batches')}",
        ],
        "step": [
            f"{_large(d['batch_tokens'])} tokens{updates}, {d['flops_per_step']:.3g} FLOPs, {d['step_s']:.3g} s; "
            f"{d['num_micro_batches']} micro-batches of {d['micro_batch_sequences']} x {d['sequence_length']}",
        ],
        "speed": [
            f"{d['tokens_per_s']:,.0f} tokens/s: {d['mfu']:.0%} of the peak, less {d['bubble_fraction']:.1%} bubble; "
            f"{d['mfu_with_bubble']:.1%} MFU in all"
        ],
        "budget": [
            f"{_large(d['budget_tokens'])} tokens, {d['num_steps']:,.0f} steps: {d['days']:.3g} days, "
            f"{d['rank_days']:.3g} rank-days"
        ],
    }
    table = Table.grid(padding=(0, 2))
    for name, lines in rows.items():
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    return table


def _held(document: dict[str, Any], name: str) -> str:
    """By part, in the order of the model, which goes through all stages before it comes to their second parts."""
    chunks = zip(*(stage["parts"] for stage in document["stages"]), strict=True)
    return brief([part[name] for chunk in chunks for part in chunk])


def _memory(document: dict[str, Any]) -> Table:
    """A row a stage."""
    table = Table("stage", "layers", *HEADINGS.values(), "total", box=box.SIMPLE_HEAD, padding=0)
    for column in table.columns[2:]:
        column.justify = "right"
    unit = "GB" if document["max_memory_bytes"] >= 1e9 else "MB"
    for index, stage in enumerate(document["stages"]):
        sizes = (*(stage["memory_bytes"][kind] for kind in HEADINGS), stage["total_memory_bytes"])
        layers = ", ".join(map(_layers, stage["parts"]))
        style = "" if stage["fits"] else "red"
        table.add_row(str(index), layers, *(_size(size, unit) for size in sizes), style=style)
    table.caption = (
        f"{unit} of a rank, of {_size(document['usable_memory_bytes'], unit)}. Versions: beside the newest. "
        "Saved: activations."
    )
    return table


def _layers(part: dict[str, Any]) -> str:
    layers = part["layers"]
    names = ["embedding"] if part["embedding"] else []
    if layers:
        names.append(str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}")
    return " ".join([*names, "head"] if part["head"] else names)


def _verdict(document: dict[str, Any]) -> str:
    if document["fits"]:
        return "[green]fits[/]"
    needed, usable = _size(document["max_memory_bytes"], "GB"), _size(document["usable_memory_bytes"], "GB")
    lines = [f"[red]does not fit[/]: the fullest stage needs {needed} GB, {document['hardware']} has {usable}"]
    for change in document["changes"]:
        verdict = "[green]fits[/]" if change["fits"] else "not enough"
        lines.append(f"  {change['overrides']}: {_size(change['max_memory_bytes'], 'GB')} GB, {verdict}")
    return "\n".join(lines)


def _size(num_bytes: float, unit: str) -> str:
    size = num_bytes / {"GB": 1e9, "MB": 1e6}[unit]
    return f"{size:.2f}" if size < 100.0 else f"{size:.1f}"


def _large(count: float) -> str:
    """Three digits and a unit."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            digits = 2 - min(2, int(math.log10(count / unit)))
            return f"{count / unit:.{digits}f}{name}"
    return f"{count:g}"
