"""How many checkpoints stay, and who waits for them. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from asyncpp.errors import check_count, check_not_negative, require


@dataclass
class CheckpointConfig:
    """Which checkpoints stay on disk beside the newest, and how they are written.

    keep_last: the newest so many. keep_every: those whose step is a multiple of it; null keeps none for that.
    keep_best: how many to keep for their validation loss, the lowest.
    asynchronous: write in the background, at the price of a copy of the state in host memory.
    """

    keep_last: int = MISSING
    keep_every: int | None = MISSING
    keep_best: int = MISSING
    asynchronous: bool = MISSING

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        check_count(f"{key}.keep_last", self.keep_last)
        every = self.keep_every
        require(every is None or every >= 1, f"{key}.keep_every", every, "expected 1 or more, or null")
        check_not_negative(f"{key}.keep_best", self.keep_best)
