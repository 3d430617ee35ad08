"""Loss curves from run folders: a panel an optimizer, synchronous against delayed against corrected.

    python analysis/make_figures.py [runs=runs/demo] [out=results]

runs: a folder that holds run folders, at any depth. out: where loss_curves.png and loss_curves.svg go.
Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from command_line import output_folder, report_passed_over, run_command
from curves import loss_curves
from figures import draw_loss_curves, save
from labels import LOSS_CURVES
from runs import load_runs


@dataclass
class FiguresOptions:
    runs: Path = Path("runs/demo")
    out: Path = Path("results")


def main(options: FiguresOptions) -> None:
    loaded = load_runs(options.runs)
    curves = loss_curves(loaded.frame)
    files = save(draw_loss_curves(curves), output_folder(options.out), LOSS_CURVES)
    report_passed_over(loaded.passed_over + curves.passed_over)
    print(f"figure: {', '.join(str(file) for file in files)}")


if __name__ == "__main__":
    sys.exit(run_command(main, FiguresOptions, sys.argv[1:], __doc__))
