"""A pipeline that trains for a while holds no more memory, files or threads than before: the soak's short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_half_a_minute_leaks_nothing():
    done = subprocess.run([sys.executable, str(SOAK), "minutes=0.5", "json=true"], capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert done.returncode == 0, result
    assert result["staleness_updates"] == [1]
    assert result["num_batches"] > 100
    assert len(result["quarters_by_rank"]) == 4
