"""Every figure from planted sweeps: what it draws, how it is laid out, and the command that writes them all."""

from __future__ import annotations

import errno
import json
import os
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cycler import cycler
from layout import check_layout
from matplotlib import rc_context
from matplotlib.figure import Figure
from planted import PLANTED, PlantRun
from planted_sweeps import LAYERS, plant_all, plant_depth, plant_moe, plant_optimizers, plant_probes, probe_rows

import make_figures as command
import make_tables
from asyncpp.arguments import run_command
from experiments import EXPERIMENTS, Missing
from figures import rendering
from figures.against import Series, draw_against
from figures.axes import linear_axis, log_axis, momentum_axis
from figures.captions import seeds_sentence
from figures.catalogue import FAMILIES, THEORY, Drawn, draw
from figures.optimizer_gap import PAPER_SUFFIX, draw_optimizer_gap
from figures.rendering import Rendered, render, render_all
from figures.stability import draw_stability
from figures.style import condition_looks, in_style, series_looks
from figures.timelines import SCHEDULES, draw_timelines
from labels import CONDITIONS, OPTIMIZERS
from load_experiments import load_experiments
from quadratic import Method, largest_stable_step
from sweep_series import over_nothing
from table_text import csv_text


@pytest.fixture(scope="module")
def planted_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_all(tmp_path_factory.mktemp("planted") / "runs")


def drawn(runs_dir: Path, name: str) -> Figure:
    (one,) = draw(load_experiments(runs_dir), name)
    assert isinstance(one, Drawn)
    return one.figure


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_every_family_is_readable(planted_runs: Path, name: str) -> None:
    figure = drawn(planted_runs, name)
    check_layout(figure)
    for panel in figure.axes:
        assert panel.has_data()
    labels = [panel.get_xlabel() + panel.get_ylabel() for panel in figure.axes]
    assert any("nats per token" in label or "step" in label for label in [*labels, figure.get_supylabel()])


@pytest.mark.parametrize("draw_figure", [draw_timelines, draw_stability])
def test_figures_without_runs_are_readable(draw_figure) -> None:
    check_layout(draw_figure())


@pytest.mark.parametrize("num_optimizers", [1, 4, 9])
def test_the_gaps_of_many_optimizers_are_readable(num_optimizers: int) -> None:
    rows = [
        {"optimizer": optimizer, "series": condition, "x": None, "seed": seed, "val_loss": 4.0, "gap": 0.1 * place}
        for place, optimizer in enumerate(list(OPTIMIZERS)[:num_optimizers])
        for condition in CONDITIONS
        for seed in (0, 1)
    ]
    check_layout(draw_optimizer_gap(pd.DataFrame(rows)))


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (log_axis, [1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2]),
        (log_axis, [1, 2, 4, 8, 16]),
        (linear_axis, [0, 0.25, 0.5, 0.75, 1, 1.5]),
        (momentum_axis, [0.0, 0.8, 0.9, 0.95, 0.98, 0.99]),
    ],
)
def test_the_axes_of_sweeps_are_readable(axis, values: list[float]) -> None:
    rows = [
        {"optimizer": optimizer, "series": "a", "x": x, "seed": 0, "val_loss": 4.0 + x, "gap": x}
        for optimizer in ("adamw", "muon", "soap")
        for x in values
    ]
    figure = draw_against(Series(pd.DataFrame(rows), {"a": "A"}, lambda panel, of: axis(panel, of, label="x")))
    check_layout(figure)
    assert [float(label.get_text()) for label in figure.axes[-1].get_xticklabels()] == values


@pytest.mark.parametrize("num_optimizers", [1, 2, 4, 9])
def test_a_search_without_late_runs_has_losses_alone(num_optimizers: int) -> None:
    rows = [
        {"optimizer": optimizer, "series": "sync", "x": x, "seed": 0, "val_loss": 4.0 + x, "gap": None}
        for place, optimizer in enumerate(list(OPTIMIZERS)[:num_optimizers])
        for x in (0.00125 * 3**place, 0.0025 * 3**place, 0.04 * 3**place)  # rates of its own for each
    ]
    figure = draw_against(Series(pd.DataFrame(rows), CONDITIONS, lambda panel, of: log_axis(panel, of, label="rate")))
    check_layout(figure)
    titles = [f"{title}: validation loss" for title in list(OPTIMIZERS.values())[:num_optimizers]]
    assert [panel.get_title() for panel in figure.axes] == titles
    assert len(figure.axes[0].get_xticks()) == 3


def test_the_gap_of_each_optimizer_stands_beside_the_papers(planted_runs: Path) -> None:
    figure = draw_optimizer_gap(over_nothing(load_experiments(planted_runs).frames["optimizers"]["tiny"]))
    (panel,) = figure.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["AdamW", "Muon"]
    ours = {bars.get_label(): list(bars.lines[0].get_xdata()) for bars in panel.containers}
    for condition in ("async", "async_ef"):
        expected = [losses[condition] - losses["sync"] for losses in PLANTED.values()]
        assert ours[CONDITIONS[condition]] == pytest.approx(expected)
    assert set(legend_of(figure)) == {"async", "async + EF", "async" + PAPER_SUFFIX, "async + EF" + PAPER_SUFFIX}


def gap_rows(**gaps: list[float]) -> pd.DataFrame:
    """Rows of one condition: gaps of an optimizer's seeds."""
    rows = [
        {"optimizer": optimizer, "series": "async", "x": None, "seed": seed, "val_loss": 4.0, "gap": gap}
        for optimizer, own in gaps.items()
        for seed, gap in enumerate(own)
    ]
    return pd.DataFrame(rows)


def test_a_gap_without_its_baseline_is_not_drawn() -> None:
    (panel,) = draw_optimizer_gap(gap_rows(adamw=[0.7, 0.9], muon=[np.nan, np.nan])).axes
    (bars,) = panel.containers
    assert list(bars.lines[0].get_xdata()) == pytest.approx([0.8])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["AdamW", "Muon"]


def test_delayed_runs_without_any_baseline_make_no_figure(plant: PlantRun) -> None:
    runs_dir = plant(delay="one_step").parent
    (entry,) = draw(load_experiments(runs_dir), "optimizer_gap")
    assert isinstance(entry, Missing)
    assert entry.reason == "expected delayed runs and the synchronous ones of their seeds"


def test_runs_of_other_conditions_make_no_figure(plant: PlantRun) -> None:
    runs_dir = plant(sweep="figure4_momentum", delay="constant").parent
    (entry,) = draw(load_experiments(runs_dir), "momentum")
    assert isinstance(entry, Missing)
    assert entry.reason == "expected runs of one of sync, async, async + EF"


def test_one_seed_has_no_spread() -> None:
    (panel,) = draw_optimizer_gap(gap_rows(adamw=[0.7, 0.9], muon=[0.1])).axes
    _, _, (bars,) = panel.containers[0]
    widths = [np.ptp(segment[:, 0]) for segment in bars.get_segments() if len(segment)]
    assert widths == pytest.approx([2 * 0.2 / np.sqrt(2)])
    rows = gap_rows(adamw=[0.7]).assign(x=1.0)
    for panel in draw_against(Series(rows, {"async": "a"}, lambda panel, of: log_axis(panel, of, "x"))).axes:
        assert not panel.containers[0].has_yerr


@pytest.mark.parametrize(
    ("gaps", "sentence"),
    [
        (
            {"adamw": [0.1, 0.2, 0.3], "muon": [0.1, 0.2, 0.3]},
            "Means over n = 3 seeds; bars are one sample standard deviation each way.",
        ),
        (
            {"adamw": [0.1, 0.2, 0.3], "muon": [0.1]},
            "Means over n = 1 to 3 seeds; bars are one sample standard deviation each way, and none at n = 1.",
        ),
        ({"adamw": [0.1], "muon": [0.1]}, "Each point is one seed (0): no bars."),
    ],
)
def test_a_caption_says_how_many_seeds_there_are(gaps: dict[str, list[float]], sentence: str) -> None:
    assert seeds_sentence(gap_rows(**gaps), ["optimizer", "series"], spread="bars") == sentence


def test_a_line_has_its_means_and_a_bar_its_spread() -> None:
    rows = pd.DataFrame(
        [
            {"optimizer": "muon", "series": "a", "x": x, "seed": seed, "val_loss": 4.0 + x + seed, "gap": x}
            for x in (1.0, 2.0)
            for seed in (-1, 0, 1)
        ]
    )
    losses, gaps = draw_against(Series(rows, {"a": "A"}, lambda panel, of: log_axis(panel, of, "x"))).axes
    line, _, (bars,) = losses.containers[0]
    assert list(line.get_ydata()) == [5.0, 6.0]
    assert [list(segment[:, 1]) for segment in bars.get_segments()] == [[4.0, 6.0], [5.0, 7.0]]
    assert list(gaps.containers[0].lines[0].get_ydata()) == [1.0, 2.0]


def test_probes_are_drawn_in_the_way_of_the_data(planted_runs: Path) -> None:
    figure = drawn(planted_runs, "staleness_probes")
    below = figure.axes[3]
    assert [label.get_text() for label in below.get_xticklabels()] == [
        name.replace("layers.", "layer ") for name in LAYERS
    ]
    muon = next(line for line in below.get_lines() if line.get_label() == "Muon async")
    assert list(muon.get_ydata()) == pytest.approx([0.9, 0.91, 0.92, 0.93, 0.94])


def test_runs_that_were_not_probed_are_missing(plant: PlantRun) -> None:
    metrics = [{"step": 0, "train/loss": 5.0}]
    large = {"summary": {"model": "135m"}, "config": {"model.name": "135m"}}
    runs_dir = plant(sweep="probes", delay="one_step", metrics=metrics, **large).parent
    (entry,) = draw(load_experiments(runs_dir), "staleness_probes")
    assert isinstance(entry, Missing)
    assert entry.reason == "expected runs with trainer.probe_every"
    assert entry.command == "python -m asyncpp.sweep run probes scale=135m"
    (momentum,) = draw(load_experiments(runs_dir), "momentum")
    assert isinstance(momentum, Missing)
    assert momentum.command == "python -m asyncpp.sweep run figure4_momentum scale=135m"


def test_one_run_that_was_not_probed_is_passed_over(tmp_path: Path, plant: PlantRun) -> None:
    plant_probes(tmp_path / "runs")
    bare = plant(sweep="probes", delay="one_step", seed=9, metrics=[])
    (entry,) = draw(load_experiments(tmp_path / "runs"), "staleness_probes")
    assert isinstance(entry, Drawn)
    assert {one.folder: one.reason for one in entry.passed_over} == {bare: "it was not probed"}


def test_a_probed_run_of_rows_that_are_none_is_passed_over(tmp_path: Path, plant: PlantRun) -> None:
    plant_probes(tmp_path / "runs")
    folder = plant(sweep="probes", delay="one_step", seed=9, metrics=list(probe_rows(0.4)))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("[1]\n")
    (entry,) = draw(load_experiments(tmp_path / "runs"), "staleness_probes")
    assert isinstance(entry, Drawn)
    assert {one.folder: one.reason for one in entry.passed_over} == {folder: "metrics.jsonl cannot be read"}


def test_timelines_name_what_each_schedule_costs() -> None:
    titles = [panel.get_title(loc="left") for panel in draw_timelines().axes]
    assert [title.partition(":")[0] for title in titles] == list(SCHEDULES.values())
    assert titles[1].endswith("weight versions 1 · delay 0 updates")
    assert titles[2].endswith("weight versions 2 · delay 1 updates")
    assert titles[3].endswith("weight versions 4, 3, 2, 1 · delay 3, 2, 1, 0 updates")


def test_the_stability_caption_says_what_feedback_does_without_momentum() -> None:
    steps = [largest_stable_step(Method(0.0, 1, strength)) for strength in (0.0, 0.5, 1.0)]
    assert steps == pytest.approx([1.0, 0.83, 0.62], abs=0.005)
    (caption,) = [entry.caption for entry in THEORY if entry.name == "stability"]
    assert caption.endswith("and without momentum takes some.")


def test_all_colours_are_the_styles() -> None:
    nine = list(OPTIMIZERS)[:9]
    with in_style():
        looks = series_looks(nine)
        assert len({look["color"] for look in looks.values()}) == 9
        conditions = condition_looks()
        assert [look["color"] for look in conditions.values()] == [looks[name]["color"] for name in list(looks)[:3]]
        assert len({look["linestyle"] for look in conditions.values()}) == 3
    greys = [f"#{index:06d}" for index in range(9)]
    with rc_context({"axes.prop_cycle": cycler(color=greys)}):
        assert [look["color"] for look in series_looks(nine).values()] == greys


def test_images_are_the_same_for_the_same_runs_in_any_process(planted_runs: Path) -> None:
    rendered = {entry.name: entry for entry in render_all(load_experiments(planted_runs), command.FORMATS)}
    assert list(rendered) == [entry.name for entry in (*FAMILIES, *THEORY)]
    for name in ("momentum", "timelines"):
        entry, figure = rendered[name], drawn(planted_runs, name)
        assert isinstance(entry, Rendered)
        assert entry.images == render(figure, command.FORMATS)
        assert entry.images["png"].startswith(b"\x89PNG") and entry.images["svg"].startswith(b"<?xml")
        assert entry.width_in == figure.get_figwidth()


def test_the_command_draws_what_there_is_and_says_what_makes_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_optimizers(tmp_path / "runs")
    plant_depth(tmp_path / "runs")
    out = tmp_path / "results"
    arguments = (f"runs={tmp_path / 'runs'}", f"out={out}", "json=true")
    assert run_command(command.__doc__, arguments, command.FiguresOptions, command.main) == 0
    document = json.loads(capsys.readouterr().out)
    names = [figure["name"] for figure in document["figures"]]
    assert names == ["loss_curves", "optimizer_gap", "depth", "timelines", "stability"]
    captions = {figure["name"]: figure["caption"] for figure in document["figures"]}
    assert captions["loss_curves"].endswith("n = 2 seeds; bands are one sample standard deviation each way.")
    assert all("n = 2 seeds; bars are" in captions[name] for name in ("optimizer_gap", "depth"))
    files = [Path(file) for figure in document["figures"] for file in figure["files"]]
    assert all(file.stat().st_size > 10_000 for file in files if file.suffix != ".csv")
    assert [file.stem for file in files if file.suffix == ".csv"] == ["loss_curves", "optimizer_gap", "depth"]
    missing = {entry["name"]: entry["command"] for entry in document["missing"]}
    assert set(missing) == {family.name for family in FAMILIES} - set(names)
    assert missing["momentum"] == "python -m asyncpp.sweep run figure4_momentum"
    assert document["passed_over"] == []


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_the_values_of_a_figure_are_a_row_a_run_or_a_point_of_one(planted_runs: Path, name: str) -> None:
    (one,) = draw(load_experiments(planted_runs), name)
    assert isinstance(one, Drawn) and one.frame is not None
    values = pd.read_csv(StringIO(csv_text(one.frame)))
    pd.testing.assert_frame_equal(values, one.frame, check_dtype=False, rtol=1e-5)
    assert {"optimizer", "seed"} <= set(values.columns)
    assert not values.duplicated(
        [column for column in values if column not in ("loss", "val_loss", "gap", "value")]
    ).any()


def test_scales_have_figures_of_their_own(tmp_path: Path) -> None:
    plant_optimizers(tmp_path)
    plant_moe(tmp_path)
    experiments = load_experiments(tmp_path)
    experiments.frames["optimizers"] |= experiments.frames["moe"]
    names = [entry.name for entry in draw(experiments, "optimizer_gap")]
    assert names == ["optimizer_gap-tiny", "optimizer_gap-tiny_moe"]


def test_no_runs_at_all_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"runs={tmp_path}", f"out={tmp_path / 'results'}")
    assert run_command(command.__doc__, arguments, command.FiguresOptions, command.main) == 2
    assert "expected at least one finished run" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def die(_: str) -> None:
    os._exit(9)


def test_a_process_that_is_killed_is_one_line_and_exit_code_1(
    planted_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "_render_one", die)
    arguments = (f"runs={planted_runs}", f"out={tmp_path}")
    assert run_command(command.__doc__, arguments, command.FiguresOptions, command.main) == 1
    assert capsys.readouterr().err == "error: a process that draws was killed; was there too little memory?\n"


def test_a_full_disk_is_one_line_and_exit_code_1(
    planted_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the system does: without a name

    monkeypatch.setattr(os, "fsync", full)
    arguments = (f"runs={planted_runs}", f"out={tmp_path}")
    assert run_command(make_tables.__doc__, arguments, make_tables.TablesOptions, make_tables.main) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/table1.md: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command.__doc__, ["figures=all"], command.FiguresOptions, command.main) == 2
    assert capsys.readouterr().err == "error: figures=all: no such key; accepted here: runs, out, scale, json\n"


def test_the_catalogue_is_whole() -> None:
    names = [entry.name for entry in (*FAMILIES, *THEORY)]
    assert len(set(names)) == len(names)
    assert {family.experiment for family in FAMILIES} <= set(EXPERIMENTS)
    assert all(entry.caption.endswith(".") for entry in (*FAMILIES, *THEORY))
