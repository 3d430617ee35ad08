"""What a run would be, without training (trainer.dry_run=true): its tokens, memory, parts and groups of parameters.

Models are built on the meta device: nothing of their size is allocated.
"""

from __future__ import annotations

from dataclasses import asdict

from asyncpp.config import Config
from asyncpp.data.availability import availability
from asyncpp.errors import EXIT_DONE
from asyncpp.planner.runs import hardware, plan_config
from asyncpp.planner.stages import cut
from asyncpp.trainer.setup import describe

GPU = "h100"  # of conf/hardware, for runs with trainer.device=cuda


def dry_run(config: Config) -> int:
    """Print it and return an exit code. Data that are missing are named first, with the command that prepares them."""
    print(f"data: {availability(config.data, config.num_tokens)}")
    for note in config.notes():
        print(f"note: {note}")
    trainer = config.trainer
    batch_tokens = trainer.batch_size * config.data.sequence_length
    print(
        f"budget: {trainer.num_steps:,} steps of {batch_tokens:,} tokens are {config.num_tokens:,}; "
        f"micro-batches a step: {trainer.num_micro_batches}"
    )
    print(memory_of(config))
    print(describe(config))
    return EXIT_DONE


def memory_of(config: Config) -> str:
    """Which machine is taken for the run's, and a line a rank: what it holds at its peak, by kind, as asyncpp.plan
    estimates it."""
    machine = hardware("cpu" if config.trainer.device == "cpu" else GPU)
    lines = [
        f"hardware: planned as {machine.name}, {machine.usable_bytes / 1e9:.3g} GB usable; for another one: "
        "python -m asyncpp.plan hardware=..."
    ]
    for rank, stage in enumerate(cut(plan_config(config, machine, mfu=1.0))):
        kinds = (f"{kind.replace('_', ' ')} {size / 1e9:.3g}" for kind, size in asdict(stage.memory).items() if size)
        lines.append(f"memory of rank {rank}: {stage.memory.total / 1e9:.3g} GB at the peak ({', '.join(kinds)})")
    return "\n".join(lines)
