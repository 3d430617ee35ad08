"""The options that tests go over, read from conf/: a new one is tested, or its missing entry asked for by name."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).parents[1] / "conf"


def options_of(group: str) -> tuple[str, ...]:
    """The options of a group of conf/, by name."""
    return tuple(sorted(path.stem for path in (CONF / group).glob("*.yaml")))


# adamw_split is AdamW with one of its two moments fresh, for one ablation. It takes two gradients of a batch, so that
# no processes have it and nothing compares it with the others; tests/optim has it beside these.
OPTIMIZERS = tuple(name for name in options_of("optimizer") if name != "adamw_split")
CORRECTIONS = tuple(name for name in options_of("correction") if name != "none")
