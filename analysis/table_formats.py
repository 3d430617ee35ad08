"""A table as Markdown that fits a terminal of 100 columns, as CSV, and as LaTeX (booktabs)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from gaps import IN_NOISE, NO_GAP, SINGLE_SEED_GAP, Comparison, Estimate, paper
from labels import CONDITIONS, optimizer_title
from tables import Table

WIDTH = 98  # of the text around a table
MISSING = "\N{EN DASH}"
TITLES = CONDITIONS | {"gap": "gap", "recovered_fraction": "recovered"}


def to_markdown(table: Table) -> str:
    """Title, table and legend, as a file of its own."""
    return f"{markdown_table(table)}\n{markdown_legend(table)}"


def markdown_table(table: Table) -> str:
    """Title and table. Ours and the paper's stand on separate, marked lines: in separate columns they would be 130
    wide."""
    header = ["optimizer", "source", *(TITLES[name] for name in table.columns)]
    lines = []
    for row in table.rows:
        ours = f"ours n={_seeds(table, row.ours)}"
        lines.append([optimizer_title(row.optimizer), ours, *_cells(table, row.ours, with_spread=True)])
        if row.paper is not None:
            lines.append(["", f"paper [{row.mark}]", *_cells(table, row.paper, with_spread=False)])
    return "\n".join([f"### {table.title}", "", *aligned(header, lines), ""])


def markdown_legend(table: Table) -> str:
    """A list of what a reader must know beside the cells."""
    return "\n".join(wrapped(_legend(table))) + "\n"


def to_csv(table: Table) -> str:
    """One line an optimizer; empty where there is no value. Losses in nats per token, shares as fractions."""
    return pd.DataFrame(table.records()).to_csv(index=False, float_format="%.6g")


def to_latex(table: Table) -> str:
    """A tabular with ours and the paper's in separate groups of columns, under a comment with title and legend."""
    names = [TITLES[name] for name in table.columns]
    width = len(names)
    lines = [
        *(f"% {line}" for line in (table.title, *_legend(table))),
        rf"\begin{{tabular}}{{l{'r' * (width + 1)}{'r' * width}l}}",
        r"\toprule",
        rf" & \multicolumn{{{width + 1}}}{{c}}{{ours}} & \multicolumn{{{width + 1}}}{{c}}{{paper}} \\",
        rf"\cmidrule(lr){{2-{width + 2}}}\cmidrule(lr){{{width + 3}-{2 * width + 3}}}",
        " & ".join(["optimizer", *names, "$n$", *names, "mark"]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        ours = [*_cells(table, row.ours, with_spread=True), _seeds(table, row.ours)]
        theirs = [*_cells(table, row.paper, with_spread=False), row.mark or MISSING]
        cells = [optimizer_title(row.optimizer), *ours, *theirs]
        lines.append(" & ".join(latex_cell(cell) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _legend(table: Table) -> list[str]:
    """What a reader must know beside the cells."""
    numbers = paper()
    marks = ", ".join(f"[{mark}] {meaning}" for mark, meaning in numbers["marks"].items())
    notes = [
        "Validation loss in nats per token, lower is better; gap = async - sync, paired by seed.",
        f"ours: {table.setting}; mean ±sample standard deviation over n seeds, column by column where n differs.",
        f"paper: {numbers['source']}, {numbers['small_model']['setting']}; {marks}. Compare patterns, not values.",
    ]
    if table.has_recovered:
        notes.insert(1, "recovered = (async - async with EF) / gap, computed from the losses, the paper's too.")
        reasons = {row.ours.undefined for row in table.rows}
        if NO_GAP in reasons:
            notes.append(f"{NO_GAP}: async is not worse than sync, so there is nothing to recover.")
        if IN_NOISE in reasons:
            notes.append(f"{IN_NOISE}: the gap is within its spread over seeds (one seed: within {SINGLE_SEED_GAP}).")
    return notes


def _cells(table: Table, comparison: Comparison | None, with_spread: bool) -> list[str]:
    undefined = comparison.undefined if comparison else None
    cells = []
    for name, estimate in zip(table.columns, table.estimates(comparison), strict=True):
        is_share = name == "recovered_fraction"
        if estimate is None:
            cells.append(undefined if is_share and undefined else MISSING)
        elif is_share:
            cells.append(f"{_mean_and_spread(estimate, 100, 0, with_spread)} %")
        else:
            cells.append(_mean_and_spread(estimate, 1, 3, with_spread))
    return cells


def _mean_and_spread(estimate: Estimate, scale: int, decimals: int, with_spread: bool) -> str:
    mean = f"{scale * estimate.mean:.{decimals}f}"
    return f"{mean} ±{scale * estimate.spread:.{decimals}f}" if with_spread and estimate.spread is not None else mean


def _seeds(table: Table, comparison: Comparison) -> str:
    """``3``, or ``3/2/3`` where the conditions have different numbers of seeds."""
    estimates = [comparison.losses[name] for name in table.conditions]
    counts = [str(estimate.num_seeds if estimate else 0) for estimate in estimates]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def wrapped(notes: Sequence[str]) -> list[str]:
    """A Markdown list of notes, by lines."""
    return [line for note in notes for line in textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")]


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]], num_left: int = 2) -> list[str]:
    """A Markdown table whose source is aligned, too: the first ``num_left`` columns to the left, the rest right."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]

    def join(cells: Sequence[str]) -> str:
        left = [cell.ljust(width) for cell, width in zip(cells[:num_left], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(cells[num_left:], widths[num_left:], strict=True)]
        return f"| {' | '.join(left + right)} |"

    left = [f":{'-' * (width - 1)}" for width in widths[:num_left]]
    right = [f"{'-' * (width - 1)}:" for width in widths[num_left:]]
    return [join(header), join(left + right), *(join(line) for line in lines)]


def latex_cell(text: str) -> str:
    for character in "&%_#":
        text = text.replace(character, f"\\{character}")
    return text.replace(MISSING, "--").replace("±", r"$\pm$")
