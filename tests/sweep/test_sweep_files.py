"""The files of sweeps/: every one composes and fits its machines at every scale, and says what it costs."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from asyncpp.config import from_hydra
from asyncpp.errors import ConfigError
from asyncpp.hydra_command import compose_overrides
from asyncpp.launcher.cell import compose_cell
from asyncpp.planner.runs import hardware, plan_config
from asyncpp.planner.stages import cut
from asyncpp.sweep.catalogue import list_sweeps
from asyncpp.sweep.expand import SweepOptions, expand, overrides_of_cells, overrides_of_launcher
from asyncpp.sweep.file import PAPER, SWEEPS, load_sweep, sweep_names
from asyncpp.sweep.state import open_ledger

TABLES = {
    "table1_optimizers", "table2_error_feedback", "table3_moe", "table4_downstream", "figure4_momentum",
    "figure6_pipedream", "appendix_a_learning_rate", "appendix_a_batch_size",
}  # fmt: skip
AT_EVERY_SCALE = [(name, scale) for name in sweep_names() for scale in load_sweep(name).scales]


def cells_of(name: str, scale: str | None = None) -> list[frozenset[str]]:
    """Every run of a sweep, by its overrides."""
    return [frozenset(overrides) for overrides in overrides_of_cells(name, load_sweep(name), SweepOptions(scale=scale))]


def test_there_is_one_for_every_table_and_figure_at_every_size():
    assert set(sweep_names()) >= TABLES
    for name in TABLES:
        assert {"tiny", "135m", "360m", PAPER} <= set(load_sweep(name).scale_names)


@pytest.mark.parametrize(("name", "scale"), AT_EVERY_SCALE)
def test_its_runs_differ_and_a_sample_of_them_composes_and_fits(name, scale):
    sweep = load_sweep(name)
    cells = overrides_of_cells(name, sweep, SweepOptions(scale=scale))
    assert len({frozenset(overrides) for overrides in cells}) == len(cells)
    sample = [cells[0], cells[len(cells) // 2], cells[-1]]
    launcher = overrides_of_launcher(sweep.at(scale))
    configs = [compose_cell((*launcher, *overrides)).config for overrides in dict.fromkeys(sample)]
    assert len({config.folder for config in configs}) == len(configs)
    for config in configs:
        assert config.sweep_name == sweep.folder_of(name)
        machine = hardware("cpu" if config.trainer.device == "cpu" else "h100")
        assert all(s.memory.total <= machine.usable_bytes for s in cut(plan_config(config, machine, mfu=0.4)))


def test_the_command_line_may_change_the_launcher_or_take_another():
    scale = load_sweep("table3_moe").at("paper")
    ours = ["hydra/launcher=slurm", "hydra.launcher.nodes=8", "hydra.launcher.gpus_per_node=8"]
    assert overrides_of_launcher(scale) == ours
    assert overrides_of_launcher(scale, ["hydra.launcher.qos=x"]) == [*ours, "hydra.launcher.qos=x"]
    assert overrides_of_launcher(scale, ["hydra/launcher=local"]) == ["hydra/launcher=local"]
    assert overrides_of_launcher(load_sweep("demo").at(None)) == ["hydra/launcher=local"]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_papers_scale_is_one_of_the_others(name):
    sweep = load_sweep(name)
    assert sweep.at(PAPER) == sweep.at(sweep.paper_scale)
    assert cells_of(name, PAPER) == cells_of(name, sweep.paper_scale)


@pytest.mark.parametrize(
    ("smaller", "larger"), [("table1_optimizers", "table2_error_feedback"), ("table4_downstream", "table3_moe")]
)
def test_a_table_that_contains_another_has_its_very_runs(smaller, larger):
    assert list(load_sweep(smaller).scales) == list(load_sweep(larger).scales)
    for scale in load_sweep(smaller).scales:
        assert set(cells_of(smaller, scale)) < set(cells_of(larger, scale))


def test_a_sweep_is_looked_after_in_the_folder_that_it_shares(tmp_path):
    ledger = tmp_path / "table1_optimizers" / ".sweep" / "ledger.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.touch()
    for name in ("table1_optimizers", "table2_error_feedback"):
        assert open_ledger(name, str(tmp_path)).file == ledger


@pytest.mark.parametrize("scale", load_sweep("appendix_a_batch_size").scales)
def test_batches_of_every_size_take_the_same_tokens(scale):
    name = "appendix_a_batch_size"
    cells = overrides_of_cells(name, load_sweep(name), SweepOptions(scale=scale, seeds=[0]))
    by_batch: dict[int, list[int]] = defaultdict(list)
    for config in (from_hydra(compose_overrides(overrides)) for overrides in cells):
        by_batch[config.trainer.batch_size].append(config.num_tokens // config.data.sequence_length)
    smallest, middle, largest = sorted(by_batch)
    assert (middle, largest) == (4 * smallest, 16 * smallest)
    (budget,) = set(by_batch[smallest])
    for batch, sequences in by_batch.items():
        assert len(sequences) == 4  # two optimizers, with and without a delay
        assert all(budget <= number < budget + batch for number in sequences)


@pytest.fixture(scope="module")
def listed() -> dict[str, dict]:
    """What ``list json=true`` prints, by sweep."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert list_sweeps(["json=true"]) == 0
    document = json.loads(printed.getvalue())
    assert (document["hardware"], document["mfu"]) == ("h100", 0.4)
    return {sweep["name"]: sweep for sweep in document["sweeps"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep_names())
def test_the_header_says_what_the_list_says(listed, name):
    sweep = listed[name]
    lines = (SWEEPS / f"{name}.yaml").read_text().splitlines()
    header = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert f": {sweep['cost']}" in header
    assert sweep["claim"] and sweep["paper"]
    first, *rest = sweep["scales"]
    assert first["command"] == f"python -m asyncpp.sweep run {name}"
    assert all(entry["command"] == f"{first['command']} scale={entry['scale']}" for entry in rest)
    assert name == "demo" or first["command"] in header


@pytest.mark.slow
def test_the_list_says_which_sweeps_share_their_runs(listed):
    assert listed["table2_error_feedback"]["shares_with"] == ["corrections", "table1_optimizers"]
    assert listed["table1_optimizers"]["shares_with"] == ["corrections", "table2_error_feedback"]
    assert listed["table4_downstream"]["folder"] == listed["table3_moe"]["folder"] == "table3_moe"
    assert listed["demo"]["shares_with"] == []


@pytest.mark.slow
def test_the_whole_of_tiny_takes_two_cores_about_100_minutes(listed):
    """Runs that sweeps share are made once: the demo's are a part of Table 2's, as half of those of corrections are."""
    once = {name: 1.0 for name in listed if name not in ("demo", "table1_optimizers", "table4_downstream")}
    once["corrections"] = len(set(cells_of("corrections")) - set(cells_of("table2_error_feedback"))) / 36
    hours = {
        name: next(entry["device_hours"] for entry in listed[name]["scales"] if entry["scale"] == "tiny")
        for name in once
    }
    assert once["corrections"] == 0.5
    assert sum(share * hours[name] for name, share in once.items()) / 2 < 105 / 60


@pytest.mark.parametrize(
    ("changes", "scale", "message"),
    [
        ({}, "huge", "scale=huge: expected one of tiny, big, paper"),
        ({"scales": {}}, None, "scales={}: expected at least one"),
        ({"paper_scale": "vast"}, "paper", "paper_scale=vast: expected one of tiny, big"),
        ({"scales": {"tiny": {"seeds": ["x"]}}}, None, "scales.tiny.seeds"),
        ({"scales": {"tiny": {"cells": 3}}}, None, "scales.tiny.cells=3: "),
        ({"scales": {"tiny": {"trainer.num_stepz": 2}}}, None, "trainer.num_stepz=2: no such key; did you mean num_st"),
        ({"scales": {"tiny": {"grid": {"optimizer": []}}}}, None, r"grid.optimizer=\[\]: expected at least one in the"),
        ({"cells": [{}, {"optimizer": "adamw"}]}, None, "sweep=.*mine.yaml: expected cells that differ: two of them"),
        ({"nonsense": 1}, None, "nonsense=1: no such key; .*accepted here: claim, .*sweep file"),
        ({"claims": "x"}, None, "claims=x: no such key; did you mean claim"),
        ({"claim": "???"}, None, r"claim=\?\?\?: expected a value .sweep file"),
        ({"grid": 3}, None, "grid=3: .*sweep file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, changes, scale, message):
    file = {"claim": "none", "paper": "none", "seeds": [0], "scales": {"tiny": {}, "big": {}}, "paper_scale": "big"}
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(file | changes))
    with pytest.raises(ConfigError, match=f"^{message}") as error:
        expand(str(path), load_sweep(str(path)), SweepOptions(scale=scale))
    assert "\n" not in str(error.value)
