"""The learning-rate search on planted runs."""

from __future__ import annotations

import json

import pytest
import yaml

from asyncpp.errors import ConfigError
from lr_search import best, load_search, to_markdown


def plant(folder, optimizer, lr, loss, status="finished", delay="sync", seed=0):
    run = folder / f"{optimizer}-{lr}-{seed}-{delay}"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"name": optimizer, "lr": lr}}))
    summary = {"optimizer": optimizer, "delay": delay, "seed": seed, "status": status, "val_loss": loss}
    (run / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def search(tmp_path):
    for lr, loss in ((0.1, 4.0), (0.2, 3.0), (0.4, 5.0)):
        plant(tmp_path, "adamw", lr, loss)
        plant(tmp_path, "adamw", lr, loss + 0.5, seed=1)
    plant(tmp_path, "lion", 0.1, 2.0)
    plant(tmp_path, "lion", 0.2, None, status="failed")
    plant(tmp_path, "adamw", 0.01, 0.0, delay="one_step")
    plant(tmp_path, "adamw", 0.02, None, status="interrupted")
    return load_search(tmp_path)


def test_the_lowest_mean_wins_and_an_edge_is_marked(search):
    winners = best(search)
    assert winners["lr"].to_dict() == {"adamw": 0.2, "lion": 0.1}
    assert winners["val_loss"].to_dict() == {"adamw": 3.25, "lion": 2.0}
    assert winners["at_edge"].to_dict() == {"adamw": False, "lion": True}


def test_the_table_names_every_rate(search):
    lines = to_markdown(search, "a machine").splitlines()
    assert "| adamw | 0.1: 4.250 · **0.2: 3.250** · 0.4: 5.250 |" in lines
    assert "| lion | **0.1: 2.000** · 0.2: diverged (edge) |" in lines


def test_no_runs_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="expected at least one synchronous run that ended"):
        load_search(tmp_path)
