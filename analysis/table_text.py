"""What every table is written with: cells, Markdown that fits a terminal of 110 columns, CSV, LaTeX (booktabs)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd

from gaps import Estimate

WIDTH = 98  # of the text around a table
SIGNIFICANT = 0.05
MISSING = "\N{EN DASH}"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%_#"}
    | {MISSING: "--", "±": r"$\pm$", ">": "$>$", "<": "$<$", "≈": r"$\approx$"}
)


def estimate_text(estimate: Estimate, decimals: int) -> str:
    """``0.744 ±0.011 *``: mean, spread, and a star where the p-value is below SIGNIFICANT."""
    spread = "" if estimate.spread is None else f" ±{estimate.spread:.{decimals}f}"
    is_significant = estimate.p_value is not None and estimate.p_value < SIGNIFICANT
    return f"{estimate.mean:.{decimals}f}{spread}{' *' if is_significant else ''}"


def counts_text(num_seeds: Iterable[int]) -> str:
    """``3``, or ``3/2/3`` where the conditions have different numbers of seeds."""
    counts = [str(count) for count in num_seeds]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def wrapped(notes: Iterable[str]) -> list[str]:
    """A Markdown list of notes, by lines. No line begins with a minus, which would be a list within the list."""
    kept_together = [f"- {note}".replace(" - ", f"{_NO_BREAK}- ") for note in notes]
    lines = [
        line
        for note in kept_together
        for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    return [line.replace(_NO_BREAK, " ") for line in lines]


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]], num_left: int = 2) -> list[str]:
    """A Markdown table whose source is aligned, too: the first ``num_left`` columns to the left, the rest right."""
    widths = [max(2, *(len(line[column]) for line in (header, *lines))) for column in range(len(header))]

    def join(cells: Sequence[str]) -> str:
        left = [cell.ljust(width) for cell, width in zip(cells[:num_left], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(cells[num_left:], widths[num_left:], strict=True)]
        return f"| {' | '.join(left + right)} |"

    left = [f":{'-' * (width - 1)}" for width in widths[:num_left]]
    right = [f"{'-' * (width - 1)}:" for width in widths[num_left:]]
    return [join(header), join(left + right), *(join(line) for line in lines)]


def csv_text(rows: pd.DataFrame) -> str:
    """Six significant digits; empty where there is no value."""
    return rows.to_csv(index=False, float_format="%.6g")


def booktabs(comments: Sequence[str], header: Sequence[str], lines: Sequence[Sequence[str]], num_left: int = 2) -> str:
    """A small LaTeX tabular below ``comments``: the first ``num_left`` columns to the left, the rest right."""
    tabular = [
        *(f"% {comment}" for comment in comments),
        r"{\small",
        rf"\begin{{tabular}}{{{'l' * num_left}{'r' * (len(header) - num_left)}}}",
        r"\toprule",
        " & ".join(latex_cell(cell) for cell in header) + r" \\",
        r"\midrule",
        *(" & ".join(latex_cell(cell) for cell in line) + r" \\" for line in lines),
        r"\bottomrule",
        r"\end{tabular}}",
    ]
    return "\n".join([*tabular, ""])


def latex_cell(text: str) -> str:
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text.translate(_LATEX))  # a hyphen before a number is a minus
