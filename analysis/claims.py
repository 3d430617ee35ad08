"""The claims of the paper: does what it says hold in our runs, at which scale, and how sure is it?

    python analysis/claims.py [runs=runs] [out=results] [scale=null] [json=false]

runs: a folder that holds run folders of any sweeps, at any depth. out: where claims.md and claims.json go.
scale: the name of a model; null judges every one that there are runs of.
json=true prints one JSON document in the place of the table of verdicts.
Exit codes: 0 done, whatever the verdicts, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from asyncpp.arguments import run_command
from asyncpp.records import write_atomically
from experiments import Experiments
from load_experiments import load_experiments
from outputs import command_of, output_folder, report_passed_over
from rules import (
    c1_optimizer,
    c2_momentum,
    c3_error_feedback,
    c4_mixture_of_experts,
    c5_downstream,
    c6_depth,
    c7_batch_size,
    c8_moments,
)
from rules.markdown import summary, to_markdown
from rules.verdicts import Claim

RULES = (
    c1_optimizer.RULE,
    c2_momentum.RULE,
    c3_error_feedback.RULE,
    c4_mixture_of_experts.RULE,
    c5_downstream.RULE,
    c6_depth.RULE,
    c7_batch_size.RULE,
    c8_moments.RULE,
)
FILE_NAME = "claims"


@dataclass
class ClaimsOptions:
    runs: Path = Path("runs")
    out: Path = Path("results")
    scale: str | None = None
    json: bool = False


def main(options: ClaimsOptions) -> None:
    experiments = load_experiments(options.runs, options.scale)
    claims = judge_claims(experiments)
    out = output_folder(options.out)
    document = {
        "claims": [claim.as_dict() for claim in claims],
        "passed_over": [entry.as_dict() for entry in experiments.passed_over],
    }
    text = json.dumps(document, indent=2, allow_nan=False)
    made_by = command_of("claims.py", options)
    write_atomically(out / f"{FILE_NAME}.json", f"{text}\n")
    write_atomically(out / f"{FILE_NAME}.md", to_markdown(claims, experiments, made_by))
    if options.json:
        print(text)
        return
    report_passed_over(experiments.passed_over)
    print(summary(claims))
    print(f"claims: {out / FILE_NAME}.md, {out / FILE_NAME}.json")


def judge_claims(experiments: Experiments) -> list[Claim]:
    """Every claim at every scale that there are runs of, in the paper's order."""
    return [claim for rule in RULES for claim in rule.claims(experiments)]


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], ClaimsOptions, main))
