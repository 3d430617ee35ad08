"""The notebooks: stored without results, each of them run from top to bottom on planted runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from planted_sweeps import plant_all

FOLDER = Path(__file__).parents[2] / "analysis" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_CELL = 10  # lines: more belongs into a function
WITHOUT_RUNS = {"table_4_downstream"}  # planted runs are not scored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_text_that_explains_short_code(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            assert len(cell.source.splitlines()) <= LONGEST_CELL


@pytest.fixture(scope="module")
def planted_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_all(tmp_path_factory.mktemp("notebooks") / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path, planted_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPP_RUNS", str(planted_runs))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("display_data", "execute_result")]
    assert any({"image/png", "text/markdown", "text/html"} & set(data) for data in shown)
    texts = [str(data.get("text/markdown", "")) for data in shown]
    assert any(text.startswith("Not here") for text in texts) == (path.stem in WITHOUT_RUNS)
    assert not [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
