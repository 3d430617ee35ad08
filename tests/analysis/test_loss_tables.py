"""Tables 1 to 3 as text, and the command that writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from planted import DELAY_AND_CORRECTION, PlantRun

import all_tables
import make_tables as command
from asyncpp.arguments import run_command
from labels import OPTIMIZERS
from load_experiments import load_experiments
from loss_table_formats import to_csv, to_latex, to_markdown
from loss_tables import Table, mixture_tables, not_made, optimizer_tables
from table_text import MISSING, latex_cell


def run(*arguments: str) -> int:
    return run_command(command.__doc__, arguments, command.TablesOptions, command.main)


def tables_of(runs_dir: Path) -> list[Table]:
    experiments = load_experiments(runs_dir)
    return [*optimizer_tables(experiments), *mixture_tables(experiments)]


def cells(markdown: str) -> list[list[str]]:
    """The lines of the one table in ``markdown``, a list of cells each, without the line of dashes."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [table[0], *table[2:]]


def test_markdown_of_planted_gaps(planted_demo: Path) -> None:
    table1, table2 = tables_of(planted_demo)
    assert cells(to_markdown(table1)) == [
        ["optimizer", "source", "sync", "async", "gap"],
        ["AdamW", "ours n=3", "4.400 ±0.020", "5.200 ±0.020", "0.800 ±0.000 *"],
        ["", "paper [S]", "2.612", "2.890", "0.278"],
        ["Muon", "ours n=3", "4.400 ±0.020", "4.500 ±0.020", "0.100 ±0.000 *"],
        ["", "paper [P]", "2.578", "2.590", "0.012"],
    ]
    assert cells(to_markdown(table2)) == [
        ["optimizer", "source", "sync", "async", "async + EF", "gap", "recovered"],
        ["AdamW", "ours n=3", "4.400 ±0.020", "5.200 ±0.020", "4.800 ±0.020", "0.800 ±0.000 *", "50 % [50, 50]"],
        ["", "paper [S]", "2.612", "2.890", "2.640", "0.278", "90 % [90, 90]"],
        ["Muon", "ours n=3", "4.400 ±0.020", "4.500 ±0.020", "4.425 ±0.020", "0.100 ±0.000 *", "75 % [75, 75]"],
        ["", "paper [P]", "2.578", "2.590", "2.583", "0.012", "58 % [50, 67]"],
    ]


def test_missing_cells_are_dashes_and_unequal_seeds_are_shown(plant: PlantRun) -> None:
    for seed in range(2):
        plant(optimizer="lion", seed=seed, val_loss=4.0 + seed)
    plant(optimizer="lion", delay="one_step", seed=1, val_loss=5.5)
    plant(optimizer="lion", delay="one_step", seed=7, val_loss=5.7)
    runs_dir = plant(optimizer="soap", delay="one_step", correction="ef").parent
    _, table2 = tables_of(runs_dir)
    assert cells(to_markdown(table2))[1:] == [
        ["SOAP", "ours n=0/0/1", MISSING, MISSING, "4.000", MISSING, MISSING],
        ["", "paper [S]", "2.581", "2.608", "2.590", "0.027", "67 % [63, 70]"],
        ["Lion", "ours n=2/2/0", "4.500 ±0.707", "5.600 ±0.141", MISSING, "0.500 (n=1)", MISSING],
    ]


def test_an_undefined_share_is_said_and_explained(plant: PlantRun) -> None:
    for optimizer, delayed in (("adamw", 3.9), ("muon", 4.005)):
        for condition, loss in (("sync", 4.0), ("async", delayed), ("async_ef", 8.0)):
            delay, correction = DELAY_AND_CORRECTION[condition]
            path = plant(optimizer=optimizer, delay=delay, correction=correction, val_loss=loss)
    tables = tables_of(path.parent)
    markdown = to_markdown(tables[1])
    assert [line[-1] for line in cells(markdown)[1::2]] == ["no gap", "in noise"]
    assert "- no gap: " in markdown
    assert "- in noise: " in markdown
    assert "no gap" not in to_markdown(tables[0])
    assert list(pd.DataFrame(tables[1].records())["recovered_undefined"]) == ["no gap", "in noise"]
    assert "%" not in "".join(line[-1] for line in cells(markdown)[1::2])


def test_nine_optimizers_fit_a_terminal_in_the_papers_order(plant: PlantRun) -> None:
    for optimizer in sorted(OPTIMIZERS):
        for delay, correction in DELAY_AND_CORRECTION.values():
            for seed in range(3):
                loss = 10.0 + seed if delay == "sync" else 12.0
                path = plant(optimizer=optimizer, delay=delay, correction=correction, seed=seed, val_loss=loss)
    for table in tables_of(path.parent):
        markdown = to_markdown(table)
        assert max(len(line) for line in markdown.splitlines()) <= 110
        assert [line[0] for line in cells(markdown)[1:] if line[0]] == list(OPTIMIZERS.values())


def plant_conditions(plant: PlantRun, losses: dict[str, float], seeds: int = 2, **values) -> Path:
    for condition, loss in losses.items():
        delay, correction = DELAY_AND_CORRECTION[condition]
        for seed in range(seeds):
            path = plant(delay=delay, correction=correction, seed=seed, val_loss=loss + 0.1 * seed, **values)
    return path.parent


def test_table_3_is_the_mixture_of_experts_with_the_papers_own_line(plant: PlantRun) -> None:
    moe = {"sweep": "table3_moe", "summary": {"model": "tiny_moe"}, "config": {"model.name": "tiny_moe"}}
    runs_dir = plant_conditions(plant, {"sync": 4.0, "async": 4.1, "async_ef": 4.05}, optimizer="muon", **moe)
    (table3,) = tables_of(runs_dir)
    assert table3.file_name == "table3"
    assert cells(to_markdown(table3))[1:] == [
        ["Muon", "ours n=2", "4.050 ±0.071", "4.150 ±0.071", "4.100 ±0.071", "0.100 ±0.000 *", "50 %"],
        ["", "paper [S]", "1.906", "1.911", "1.906", "0.005", "100 % [80, 125]"],
    ]
    assert "10B mixture of experts" in to_markdown(table3)
    frame = pd.DataFrame(table3.records())
    assert list(frame["paper_async"].dropna()) == [1.911]
    lines = to_latex(table3).splitlines()
    assert r" & paper [S] & 1.906 & 1.911 & 1.906 & 0.005 & 100 \% [80, 125] \\" in lines


def test_scales_are_lines_of_one_optimizer(plant: PlantRun) -> None:
    plant_conditions(plant, {"sync": 4.0, "async": 5.0}, sweep="table1_optimizers")
    larger = {
        "summary": {"model": "135m", "num_steps": 800},
        "config": {"model.name": "135m", "trainer.num_steps": 800},
    }
    runs_dir = plant_conditions(plant, {"sync": 3.0, "async": 3.2}, seeds=1, sweep="table1_optimizers", **larger)
    table1, _ = tables_of(runs_dir)
    assert [line[:2] for line in cells(to_markdown(table1))[1:]] == [
        ["AdamW", "tiny n=2"],
        ["AdamW", "135m n=1"],
        ["", "paper [S]"],
    ]
    assert r"AdamW & 135m n=1 & 3.000 & 3.200 & 0.200 \\" in to_latex(table1)
    assert "model=135m, 800 steps" in to_markdown(table1)


def test_a_missing_cell_says_what_fills_it(plant: PlantRun) -> None:
    plant_conditions(plant, {"sync": 4.0, "async": 5.0, "async_ef": 4.5}, sweep="table1_optimizers")
    runs_dir = plant_conditions(plant, {"sync": 4.0}, sweep="table1_optimizers", optimizer="muon")
    table1, table2 = tables_of(runs_dir)
    command = "python -m asyncpp.sweep run table2_error_feedback seeds=[0,1]"
    assert table1.missing[0] == f"No runs yet: Muon async (seeds 0, 1): {command}"
    assert table2.missing[0] == f"No runs yet: Muon async (seeds 0, 1), Muon async + EF (seeds 0, 1): {command}"
    assert table2.missing[1].startswith("No runs yet: NorMuon, SOAP, Adan, Lion, MARS: python -m asyncpp.sweep run ")
    assert "No runs yet: Muon async (seeds 0, 1)" in to_markdown(table1).replace("\n  ", " ")


def test_a_missing_cell_of_another_sweep_names_that_sweep(plant: PlantRun) -> None:
    runs_dir = plant_conditions(plant, {"sync": 4.0}, sweep="mine")
    table1, _ = tables_of(runs_dir)
    assert table1.missing[0] == "No runs yet: AdamW async (seeds 0, 1): python -m asyncpp.sweep run mine seeds=[0,1]"


def test_seeds_without_a_partner_are_missing_though_every_cell_has_as_many(plant: PlantRun) -> None:
    for seed in (0, 1, 2):
        plant(seed=seed, val_loss=4.0 + 0.01 * seed, sweep="table1_optimizers")
    for seed in (0, 1, 3):
        late = {"delay": "one_step", "val_loss": 5.0 + 0.01 * seed}
        runs_dir = plant(seed=seed, sweep="table1_optimizers", **late).parent
    table1, _ = tables_of(runs_dir)
    command = "python -m asyncpp.sweep run table2_error_feedback seeds=[0,1,2,3]"
    assert table1.missing[0] == f"No runs yet: AdamW sync (seed 3), AdamW async (seed 2): {command}"
    assert cells(to_markdown(table1))[1][-1].endswith("(n=2)")


def test_a_run_that_failed_is_said_to_have_failed_and_no_command_repeats_it(plant: PlantRun) -> None:
    for seed in (0, 1, 2):
        plant(seed=seed, sweep="table1_optimizers")
        failed = {"status": "failed", "error": "validation loss is nan"} if seed == 2 else None
        runs_dir = plant(delay="one_step", seed=seed, val_loss=5.0, sweep="table1_optimizers", summary=failed).parent
    table1, _ = tables_of(runs_dir)
    assert table1.missing[0] == "In no mean, as it failed: AdamW async (seed 2): validation loss is nan"
    assert not any("AdamW" in line for line in table1.missing[1:])


LARGE = {"summary": {"model": "135m"}, "config": {"model.name": "135m"}}


def test_an_optimizer_is_missing_at_the_scale_where_it_has_no_runs(plant: PlantRun) -> None:
    for optimizer in OPTIMIZERS:
        plant_conditions(plant, {"sync": 4.0, "async": 5.0}, sweep="table1_optimizers", optimizer=optimizer)
    runs_dir = plant_conditions(plant, {"sync": 3.0, "async": 3.2}, sweep="table1_optimizers", **LARGE)
    command = "python -m asyncpp.sweep run table2_error_feedback scale=135m"
    for table in tables_of(runs_dir):
        assert f"No runs yet: Muon, NorMuon, SOAP, Adan, Lion, MARS: {command}" in table.missing


def test_what_is_not_made_is_made_at_the_size_of_the_runs(plant: PlantRun) -> None:
    runs_dir = plant_conditions(plant, {"sync": 3.0}, sweep="table1_optimizers", **LARGE)
    table3, table4 = not_made(load_experiments(runs_dir), ["table1", "table2"])
    assert table3.command == "python -m asyncpp.sweep run table3_moe scale=135m"
    trains = "python -m asyncpp.sweep run table4_downstream scale=135m"
    assert table4.command.startswith(f"{trains} && python -m eval.fetch ")
    assert table4.reason == "no scored runs of table4_downstream or table3_moe"


def test_gaps_come_with_p_values_and_intervals(planted_demo: Path) -> None:
    record = next(row for row in tables_of(planted_demo)[1].records() if row["optimizer"] == "muon")
    assert record["gap_p_value"] < 0.001
    assert record["gap_low"] == pytest.approx(0.1)
    assert record["recovered_fraction_high"] == pytest.approx(0.75)
    assert record["scale"] == "tiny"


def test_csv_keeps_ours_and_the_papers_in_separate_columns(planted_demo: Path, tmp_path: Path) -> None:
    _, table2 = tables_of(planted_demo)
    (tmp_path / "table.csv").write_text(to_csv(table2))
    frame = pd.read_csv(tmp_path / "table.csv", index_col="optimizer")
    assert frame.loc["muon", "gap"] == pytest.approx(0.1)
    assert frame.loc["muon", "recovered_fraction"] == pytest.approx(0.75)
    assert frame.loc["muon", "sync_num_seeds"] == 3
    assert frame.loc["muon", "sync_spread"] == pytest.approx(0.02)
    assert frame.loc["muon", "paper_sync"] == 2.578
    assert frame.loc["muon", "paper_recovered_fraction"] == pytest.approx(7 / 12, abs=1e-6)
    assert frame.loc["muon", "paper_mark"] == "P"


def test_latex_is_a_booktabs_tabular_of_even_rows(planted_demo: Path) -> None:
    for table in tables_of(planted_demo):
        lines = [line for line in to_latex(table).splitlines() if not line.startswith("%")]
        assert lines[0] == r"{\small"
        num_columns = len(lines[1].removeprefix(r"\begin{tabular}{").removesuffix("}"))
        body = lines[lines.index(r"\midrule") - 1 : lines.index(r"\bottomrule")]
        assert [line.count("&") + 1 for line in body if "&" in line] == [num_columns] * (1 + 2 * len(table.rows))
        assert r"AdamW & ours n=3 & 4.400 $\pm$0.020" in "\n".join(body)
        assert lines[-1] == r"\end{tabular}}"


def test_a_negative_number_has_a_minus_in_latex() -> None:
    assert latex_cell("-0.5 [-12, 21] ARC-Easy 1-2") == "$-$0.5 [$-$12, 21] ARC-Easy 1-2"


def test_latex_escapes_names_and_percents(plant: PlantRun) -> None:
    for delay, correction in DELAY_AND_CORRECTION.values():
        loss = {"none": 4.0 if delay == "sync" else 5.0, "ef": 4.5}[correction]
        path = plant(optimizer="my_optimizer", delay=delay, correction=correction, val_loss=loss)
    latex = to_latex(tables_of(path.parent)[1])
    assert r"my\_optimizer & ours n=1 & 4.000 & 5.000 & 4.500 & 1.000 & 50 \% \\" in latex


def test_the_command_prints_tables_and_writes_files(
    planted_demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "results"
    (planted_demo / "half" / "x").mkdir(parents=True)
    (planted_demo / "half" / "x" / "config.yaml").write_text("seed: 0\n")
    assert run(f"runs={planted_demo}", f"out={out}") == 0
    printed = capsys.readouterr()
    assert sorted(file.name for file in out.iterdir()) == [
        f"table{number}.{suffix}" for number in (1, 2) for suffix in ("csv", "md", "tex")
    ]
    for number in (1, 2):
        table = (out / f"table{number}.md").read_text().split("\n\n")[1]
        assert table in printed.out
    assert f"tables: {out}/table1.{{md,csv,tex}}" in printed.out
    assert "make_figures.py" in printed.out
    assert f"{planted_demo}/half/x: not finished: no summary.json" in printed.err


def test_json_is_one_document(planted_demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"runs={planted_demo}", f"out={tmp_path}", "json=true") == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["optimizer"]: row for row in document["table2"]["rows"]}
    assert rows["adamw"]["recovered_fraction"] == pytest.approx(0.5)
    assert rows["adamw"]["paper_async"] == 2.89
    assert len(document["passed_over"]) == 18
    assert all("no whole, finite validation curve" in entry["reason"] for entry in document["passed_over"])
    assert [entry["title"] for entry in document["not_made"]] == ["Table 3", "Table 4"]
    assert document["table2"]["missing"][0].startswith("No runs yet: NorMuon, ")
    assert all(Path(file).is_file() for file in document["files"])
    assert len(document["files"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rnus=x"],
            "error: rnus=x: no such key; did you mean runs? accepted here: runs, out, scale,",
        ),
        (["runs.a=x"], "error: runs.a=x: no such key"),
        (
            ["x"],
            "error: argument=x: expected key=value, with a key of runs, out, scale,",
        ),
        (
            ["runs"],
            "error: argument=runs: expected key=value, with a key of runs, out, scale,",
        ),
        (["runs="], "error: runs=: expected a value after the equals sign"),
        (["json=perhaps"], "error: json=perhaps: "),
        (["out=${nowhere}"], "error: out=${nowhere}: "),
        (["num_micro_batches=2"], "error: num_micro_batches=2: expected at least num_stages=4"),
        (["runs=/nonexistent"], "error: runs=/nonexistent: expected a folder that holds run folders"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_file_is_refused(planted_demo: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").write_text("mine")
    assert run(f"runs={planted_demo}", f"out={tmp_path / 'out'}") == 2
    assert "expected a folder that can be written" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def test_runs_of_other_conditions_make_no_table(plant: PlantRun, tmp_path: Path, capsys) -> None:
    runs_dir = plant(delay="constant").parent
    assert run(f"runs={runs_dir}", f"out={tmp_path / 'out'}") == 2
    assert "a delay of zero or one update" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_script_runs_as_a_newcomer_types_it() -> None:
    script = Path(command.__file__)
    finished = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "python analysis/make_tables.py [runs=" in finished.stdout


def test_one_table_is_made_without_the_others(planted_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = load_experiments(planted_demo)
    everything = {table.file_name: table for table in all_tables.make_all_tables(experiments, 4, 4).tables}
    for other in ("time_to_loss", "downstream_table"):
        monkeypatch.delattr(all_tables, other)
    (table2,) = all_tables.make_one_table(experiments, "table2", 4, 4)
    assert table2 == everything["table2"]
    assert all_tables.make_one_table(experiments, "table3", 4, 4) == []
