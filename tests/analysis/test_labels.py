"""What tables and figures call the options of conf/."""

from __future__ import annotations

import options

from labels import OPTIMIZERS


def test_every_optimizer_has_a_title_and_a_place_in_tables() -> None:
    assert set(OPTIMIZERS) == set(options.OPTIMIZERS)
