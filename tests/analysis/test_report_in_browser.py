"""The report as a person sees it: opened in headless Chromium, without a network, by day and by night."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from planted_sweeps import plant_all

import make_report as command
from asyncpp.arguments import run_command

NAMES = ("chromium", "chromium-browser", "google-chrome")
PREFERRED_SCHEME = {"dark": 0, "light": 1}  # Blink's numbers
WIDTH_PX, HEIGHT_PX = 1200, 2400
TIMEOUT_S = 120


def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"none of {', '.join(NAMES)} is installed; .ci/run installs chromium on Debian")
    if found is None:
        pytest.skip(f"needs one of {', '.join(NAMES)}")
    return found


def screenshot(page: Path, scheme: str, out: Path) -> np.ndarray:
    """The top of the page, as (height, width, 3) in [0, 1]."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={out.parent / 'profile'}"]
    options += [
        f"--window-size={WIDTH_PX},{HEIGHT_PX}",
        f"--blink-settings=preferredColorScheme={PREFERRED_SCHEME[scheme]}",
    ]
    subprocess.run(
        [browser(), *options, f"--screenshot={out}", page.as_uri()], check=True, capture_output=True, timeout=TIMEOUT_S
    )
    return imread(out)[:, :, :3]


@pytest.mark.slow
def test_it_is_readable_by_day_and_by_night(tmp_path: Path) -> None:
    browser()
    arguments = (f"runs={plant_all(tmp_path / 'runs')}", f"out={tmp_path}")
    assert run_command(command.__doc__, arguments, command.ReportOptions, command.main) == 0
    shots = {
        scheme: screenshot(tmp_path / "report.html", scheme, tmp_path / f"{scheme}.png") for scheme in PREFERRED_SCHEME
    }
    for scheme, pixels in shots.items():
        assert pixels.shape == (HEIGHT_PX, WIDTH_PX, 3)
        luminance = pixels.mean(axis=2)
        paper = np.median(luminance)
        assert paper > 0.9 if scheme == "light" else paper < 0.2
        ink = np.abs(luminance - paper) > 0.5  # text stands out from the paper, down the whole page
        assert (ink.reshape(12, -1).mean(axis=1) > 0.005).all()
        margins = ink[:, [*range(8), *range(-8, 0)]]
        assert not margins.any()  # nothing runs off the sides
