"""Tables 1 to 3 as Markdown, as CSV, and as LaTeX (booktabs)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gaps import IN_NOISE, NO_GAP, SMALLEST_GAP, Comparison, Estimate, paper
from labels import CONDITIONS, optimizer_title
from loss_tables import Row, Table
from table_text import MISSING, SIGNIFICANT, aligned, booktabs, counts_text, csv_text, estimate_text, wrapped

TITLES = CONDITIONS | {"gap": "gap", "recovered_fraction": "recovered"}


def to_markdown(table: Table) -> str:
    """Title, table and legend, as a file of its own."""
    return f"{markdown_table(table)}\n{markdown_legend(table)}{markdown_missing(table)}"


def markdown_table(table: Table) -> str:
    """Title and table."""
    return "\n".join([f"### {table.title}", "", *aligned(_header(table), _lines(table)), ""])


def markdown_legend(table: Table) -> str:
    """A list of what a reader must know beside the cells."""
    return "\n".join(wrapped(_legend(table))) + "\n"


def markdown_missing(table: Table) -> str:
    """A list of what has no runs yet, with the commands that make them; empty where there is nothing."""
    lines = wrapped(table.missing)
    return "".join(f"{line}\n" for line in lines)


def to_csv(table: Table) -> str:
    """One line an optimizer and scale; empty where there is no value. Losses in nats per token, shares as fractions."""
    return csv_text(pd.DataFrame(table.records()))


def to_latex(table: Table) -> str:
    """A tabular that fits a page's full width, under a comment with title and legend."""
    return booktabs([table.title, *_legend(table)], _header(table), _lines(table))


def _header(table: Table) -> list[str]:
    return ["optimizer", "source", *(TITLES[name] for name in table.columns)]


def _lines(table: Table) -> list[list[str]]:
    """Ours and the paper's on separate, marked lines: side by side they would be wider than a page."""
    lines = []
    for index, row in enumerate(table.rows):
        if row.ours is not None:
            title = optimizer_title(str(row.optimizer))
            lines.append([title, _source(table, row), *_cells(table, row.ours, is_ours=True)])
        is_last_of_optimizer = all(other.optimizer != row.optimizer for other in table.rows[index + 1 :])
        if row.paper is not None and is_last_of_optimizer:
            lines.append(["", f"paper [{row.mark}]", *_cells(table, row.paper, is_ours=False)])
    return lines


def _legend(table: Table) -> list[str]:
    """What a reader must know beside the cells."""
    numbers = paper()
    marks = ", ".join(f"[{mark}] {meaning}" for mark, meaning in numbers["marks"].items())
    notes = [
        "Validation loss in nats per token, lower is better; gap = async - sync, paired by seed; "
        f"* its p-value is below {SIGNIFICANT} (Student's t over seeds).",
        f"ours: {'; '.join(table.settings)}; mean ±sample standard deviation over n seeds, condition by condition "
        "where n differs; (n=2): a gap or a share over fewer seeds than that, those that have both sides.",
        f"paper: {numbers['source']}, {table.paper_setting}; {marks}. Compare patterns, not values.",
    ]
    if table.has_recovered:
        notes.insert(
            1,
            "recovered = (async - async with EF) / gap, computed from the losses, the paper's too; ours with [95 % "
            "bootstrap interval over seeds, from three on, which with three is their range and covers the truth 70 "
            f"times in 100], the paper's with [what its rounding allows]{_printed_shares(table)}.",
        )
        reasons = {row.ours.undefined for row in table.rows if row.ours}
        if NO_GAP in reasons:
            notes.append(f"{NO_GAP}: async is not worse than sync, so there is nothing to recover.")
        if IN_NOISE in reasons:
            notes.append(f"{IN_NOISE}: the gap is {SMALLEST_GAP} or less, or its 95 % interval contains 0.")
    return notes


def _printed_shares(table: Table) -> str:
    """Shares that the paper prints, and that its losses do not give."""
    shown = {row.optimizer for row in table.rows if row.paper}
    printed: dict[str, dict[str, Any]] = paper()["small_model"]["printed_recovered_fraction"]
    shares = [(name, entry["value"]) for name, entry in printed.items() if name in shown]
    return "".join(f"; it prints {100 * value:.0f} % for {optimizer_title(name)}" for name, value in shares)


def _source(table: Table, row: Row) -> str:
    whose = row.model if table.has_scales else "ours"
    return f"{whose} n={_seeds(table, row.ours)}"


def _cells(table: Table, comparison: Comparison | None, is_ours: bool) -> list[str]:
    undefined = comparison.undefined if comparison else None
    fullest = max((table.num_seeds(comparison, name) for name in table.conditions), default=0)
    cells = []
    for name, estimate in zip(table.columns, table.estimates(comparison), strict=True):
        is_share = name == "recovered_fraction"
        if estimate is None:
            cells.append(undefined if is_share and undefined else MISSING)
            continue
        text = _share(estimate) if is_share else estimate_text(estimate, 3) if is_ours else f"{estimate.mean:.3f}"
        is_paired = name not in table.conditions
        cells.append(f"{text} (n={estimate.num_seeds})" if is_paired and estimate.num_seeds < fullest else text)
    return cells


def _share(share: Estimate) -> str:
    interval = share.interval
    between = f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]" if interval else ""
    return f"{100 * share.mean:.0f} %{between}"


def _seeds(table: Table, comparison: Comparison | None) -> str:
    if comparison is None:
        return "0"
    return counts_text(table.num_seeds(comparison, name) for name in table.conditions)
