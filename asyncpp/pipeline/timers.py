"""Where a rank's time goes: seconds of five kinds, which do not overlap."""

from __future__ import annotations

# What a rank does in FORWARD and BACKWARD; RECV; SEND; UPDATE, from when its norm is there; and the wait for that.
TIMERS = ("compute_s", "wait_receive_s", "send_s", "update_s", "wait_norm_s")


class Timers:
    """Seconds since they were last taken, by a name of TIMERS."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(TIMERS, 0.0)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] += seconds

    def take(self) -> list[float]:
        """In the order of TIMERS; they start again from zero."""
        seconds = list(self._seconds.values())
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return seconds
