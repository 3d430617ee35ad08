"""Every figure: what it shows, which experiment it is drawn from, and how.

A new figure is a function that draws a frame, in a file of its own, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

import sweep_series
from asyncpp.errors import ConfigError, require
from curves import loss_curves
from experiments import EXPERIMENTS, Experiments, Missing
from figures.against import LABELS, Series, draw_against
from figures.axes import linear_axis, log_axis, momentum_axis
from figures.captions import seeds_sentence
from figures.corrections import draw_corrections
from figures.loss_curves import draw_loss_curves
from figures.optimizer_gap import draw_optimizer_gap
from figures.stability import draw_stability
from figures.staleness_probes import draw_staleness_probes
from figures.timelines import draw_timelines
from labels import CONDITIONS, LOSS_CURVES
from probes import staleness_probes
from runs import PassedOver


@dataclass(frozen=True)
class Drawing:
    """frame: what it draws, a row a run, or several of a run that has several values. seeds: a sentence for the
    caption, how many are behind a point. passed_over: runs that it leaves out, and why."""

    figure: Figure
    frame: pd.DataFrame
    seeds: str
    passed_over: list[PassedOver] = field(default_factory=list)


@dataclass(frozen=True)
class Family:
    """name: of the files. experiment: a key of experiments.EXPERIMENTS.

    caption: without the sentence on seeds, which ends it. draw: of that experiment's frame at a scale. It raises
    ConfigError where none of its runs can be drawn.
    """

    name: str
    title: str
    caption: str
    experiment: str
    draw: Callable[[pd.DataFrame], Drawing]


@dataclass(frozen=True)
class Theory:
    """A figure that needs no runs."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Drawn:
    """frame: of Drawing; None of a figure that needs no runs. passed_over: runs that it leaves out, and why."""

    name: str
    title: str
    caption: str
    figure: Figure
    frame: pd.DataFrame | None
    passed_over: list[PassedOver]


def _loss_curves(frame: pd.DataFrame) -> Drawing:
    curves = loss_curves(frame)
    drawn = curves.frame.dropna(subset=["loss"])
    seeds = seeds_sentence(drawn, ["optimizer", "condition", "step"], spread="bands")
    return Drawing(draw_loss_curves(curves), curves.frame, seeds, curves.passed_over)


def _gaps(
    rows_of: Callable[[pd.DataFrame], pd.DataFrame], draw_rows: Callable[[pd.DataFrame], Figure], accepted: str
) -> Callable[[pd.DataFrame], Drawing]:
    def drawing(frame: pd.DataFrame) -> Drawing:
        rows = rows_of(frame)
        drawn = rows.dropna(subset=["gap"])
        require(not drawn.empty, "runs", frame["folder"].iloc[0], f"expected {accepted} of their seeds")
        seeds = seeds_sentence(drawn, ["optimizer", "series"], spread="bars")
        return Drawing(draw_rows(rows), rows.drop(columns="x"), seeds)

    return drawing


def _staleness_probes(frame: pd.DataFrame) -> Drawing:
    probed = staleness_probes(frame)
    drawn = probed.frame.dropna(subset=["value"])
    seeds = seeds_sentence(drawn, ["optimizer", "condition", "quantity", "step"])
    return Drawing(draw_staleness_probes(probed.frame), probed.frame, seeds, probed.passed_over)


def _against(
    rows: Callable[[pd.DataFrame], pd.DataFrame], titles: Mapping[str, str], axis: Callable[..., None], label: str
) -> Callable[[pd.DataFrame], Drawing]:
    def drawing(frame: pd.DataFrame) -> Drawing:
        series = Series(rows(frame), titles, partial(axis, label=label))
        accepted = f"expected runs of one of {', '.join(titles.values())}"
        require(not series.frame.empty, "runs", frame["folder"].iloc[0], accepted)
        point = ["optimizer", "series", "x"]
        drawn = series.frame.melt([*point, "seed"], list(LABELS), "quantity").dropna(subset=["value"])
        seeds = seeds_sentence(drawn, [*point, "quantity"], spread="bars")
        return Drawing(draw_against(series), series.frame, seeds)

    return drawing


FAMILIES = (
    Family(
        LOSS_CURVES,
        "Loss over steps",
        "Synchronous training, training with every gradient one update late, and the same with error feedback (EF).",
        "optimizers",
        _loss_curves,
    ),
    Family(
        "optimizer_gap",
        "Gap by optimizer (claims C1 and C3)",
        "What one step of delay costs in validation loss, without and with error feedback, over the synchronous run of "
        "the same seed. Hollow marks: the paper's 360M model, whose losses are lower: compare patterns.",
        "optimizers",
        _gaps(sweep_series.over_nothing, draw_optimizer_gap, "delayed runs and the synchronous ones"),
    ),
    Family(
        "momentum",
        "Momentum (claim C2, the paper's Figure 4)",
        "AdamW's first decay rate, and Muon's momentum. The axis is spaced by how many updates a momentum averages "
        "over. Every momentum has a synchronous run of its own.",
        "momentum",
        _against(sweep_series.over_momentum, CONDITIONS, momentum_axis, "momentum"),
    ),
    Family(
        "depth",
        "Depth of the pipeline (claim C6, the paper's Figure 6)",
        "PipeDream-2BW delays every gradient by one update at any depth P; PipeDream by P - 1 - s updates on stage s. "
        "The tiny model has eight layers here, to make room for eight stages.",
        "depth",
        _against(sweep_series.over_depth, sweep_series.DEPTH_TITLES, log_axis, "pipeline stages P"),
    ),
    Family(
        "batch_size",
        "Batch size (claim C7, the paper's Appendix A.2)",
        "As many tokens in larger or smaller batches, which are fewer or more updates, at one learning rate.",
        "batch_size",
        _against(sweep_series.over_batch_size, CONDITIONS, log_axis, "batch (tokens)"),
    ),
    Family(
        "learning_rate",
        "Learning rate (the paper's Appendix A)",
        "The peak learning rate.",
        "learning_rate",
        _against(sweep_series.over_learning_rate, CONDITIONS, log_axis, "peak learning rate"),
    ),
    Family(
        "initial_std",
        "Initial weights",
        "The standard deviation of the weights that every run starts from.",
        "initial_std",
        _against(sweep_series.over_initial_std, CONDITIONS, log_axis, "std of initial weights"),
    ),
    Family(
        "strength",
        "Strength of error feedback",
        "The share λ of the last error that is fed back: 0 is the plain delay, 1 the paper's. The weights can be read "
        "at x, where the next gradient is taken, or at z, where the optimizer stands.",
        "strength",
        _against(sweep_series.over_strength, sweep_series.STRENGTH_TITLES, linear_axis, "strength of EF, λ"),
    ),
    Family(
        "corrections",
        "Corrections of the delay",
        "What one step of delay costs in validation loss with each correction, at its own default strength. Sync "
        "start: the first tenth of the steps has no delay; the paper's share is not known.",
        "corrections",
        _gaps(
            sweep_series.over_corrections,
            draw_corrections,
            "runs with a correction other than error feedback, and the synchronous ones",
        ),
    ),
    Family(
        "staleness_probes",
        "Staleness, probed",
        "The gradient of one batch at the weights that the delay gives it and at the newest ones, and one update "
        "beside the last. A cosine of 1 and a ratio of 1 mean that the delay does not matter to that step.",
        "probes",
        _staleness_probes,
    ),
)
THEORY = (
    Theory(
        "timelines",
        "Schedules",
        "What each of four stages does when: four micro-batches a batch, two batches, a backward as long as two "
        "forwards, messages that take no time. Numbers are micro-batches, colours the weights that they run on. "
        "What is idle without a flush is filling and draining, a large share of two batches and a small one of many.",
        draw_timelines,
    ),
    Theory(
        "stability",
        "How large a step a delay allows",
        "The largest step at which momentum SGD converges on a quadratic of curvature h: lines by theory (roots of the "
        "characteristic polynomial on the unit circle), marks by experiment with asyncpp's own update. A delay of one "
        "undoes what momentum adds to the stable steps; error feedback gives a part of it back, the more the higher "
        "the momentum, and without momentum takes some.",
        draw_stability,
    ),
)


def draw(experiments: Experiments, name: str) -> Iterator[Drawn | Missing]:
    """The figure called ``name`` at each scale that has its runs, or what makes them."""
    entry = {entry.name: entry for entry in (*FAMILIES, *THEORY)}[name]
    if isinstance(entry, Theory):
        yield Drawn(name, entry.title, entry.caption, entry.draw(), None, [])
        return
    frames = experiments.frames[entry.experiment]
    if not frames:
        yield experiments.missing(name, entry.title, entry.experiment)
    for model, frame in frames.items():
        suffix, title = (f"-{model}", f"{entry.title}, {model}") if len(frames) > 1 else ("", entry.title)
        try:
            drawing = entry.draw(frame)
        except ConfigError as error:
            yield Missing(name + suffix, title, error.accepted, EXPERIMENTS[entry.experiment].command(model))
            continue
        caption = f"{entry.caption} {drawing.seeds}"
        yield Drawn(name + suffix, title, caption, drawing.figure, drawing.frame, drawing.passed_over)
