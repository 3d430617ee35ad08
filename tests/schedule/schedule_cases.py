"""Schedules for property tests: every builder, over shapes that it can have."""

from __future__ import annotations

from hypothesis import strategies as st

from asyncpp.schedule.action import Schedule
from asyncpp.schedule.builders import BUILDERS, build


@st.composite
def schedules(
    draw: st.DrawFn, name: str | None = None, max_stages: int = 12, max_micro_batches: int = 24, max_batches: int = 3
) -> Schedule:
    """A schedule of the builder ``name``, or of any."""
    name = name or draw(st.sampled_from(sorted(BUILDERS)))
    num_stages = draw(st.integers(1, max_stages))
    smallest = num_stages if BUILDERS[name].full_batches else 1
    num_micro_batches = draw(st.integers(smallest, max_micro_batches))
    num_batches = draw(st.integers(1, max_batches))
    num_chunks = draw(st.integers(2, 3)) if name == "interleaved" else None
    return build(name, num_stages, num_micro_batches, num_batches, num_chunks, first_batch=draw(st.integers(0, 5)))
