"""The command: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib import image
from rich.console import Console

from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE
from asyncpp.schedule.builders import build
from asyncpp.schedule.draw import terminal_grid, trace
from asyncpp.schedule.palette import colours
from asyncpp.schedule.report import brief, report
from asyncpp.schedule.show import main
from asyncpp.schedule.timeline import timeline

SHOW = ("show", "schedule=two_bw", "num_stages=4", "num_micro_batches=4", "batches=3")


def test_json_is_one_document_with_the_numbers(capsys):
    assert main([*SHOW, "json=true"]) == EXIT_DONE
    captured = capsys.readouterr()
    numbers = json.loads(captured.out)
    assert captured.err == ""
    assert numbers["bubble_fraction"] == 3 / 15
    assert numbers["steady_bubble_fraction"] == 0.0
    assert numbers["staleness_updates"] == [[0, 1, 1]] * 4
    assert numbers["steady_staleness_updates"] == [1] * 4
    assert numbers["peak_weight_versions"] == [2] * 4
    assert numbers["peak_saved_activations"] == [4, 3, 2, 1]


def test_compare_puts_schedules_beside_each_other(capsys):
    assert main(["compare", "schedules=1f1b,2bw,interleaved", "num_chunks=3", "json=true"]) == EXIT_DONE
    rows = json.loads(capsys.readouterr().out)["schedules"]
    assert [row["schedule"] for row in rows] == ["one_f_one_b", "two_bw", "interleaved"]
    assert [row["bubble_fraction"] for row in rows] == pytest.approx([3 / 7, 3 / 15, 3 / 15])
    assert rows[2]["num_chunks"] == 3


def test_the_grid_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["show", "schedule=1f1b", "num_stages=2", "num_micro_batches=2", "batches=2"]) == EXIT_DONE
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        "one_f_one_b",
        "stage 0   F0 F1       B0       B1   │F2 F3       B2       B3   │",
        "stage 1      F0 B0    F1 B1   │         F2 B2    F3 B3   │",
    ]
    assert any("33.3%" in line and "0" in line for line in lines)


def test_a_long_grid_is_cut_between_cells():
    drawn = timeline(build("gpipe", 2, 12, 1))
    pieces = terminal_grid(drawn, width=50)
    assert len(pieces) > 1
    lines = [piece.plain.splitlines() for piece in pieces]
    assert all(len(line) <= 50 for piece in lines for line in piece)
    assert "".join(piece[1][9:] for piece in lines).split() == [f"{kind}{m}" for kind in "FB" for m in range(12)] + [
        "│"
    ]


def test_the_terminal_shows_versions_as_colours():
    piece = terminal_grid(timeline(build("two_bw", 1, 1, 3)), width=100)[0]
    console = Console(color_system="truecolor", force_terminal=True, width=100)
    with console.capture() as capture:
        console.print(piece)
    for version in (0, 1):
        for is_forward in (True, False):
            background = colours(version, is_forward)[0]
            red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
            assert f"48;2;{red};{green};{blue}" in capture.get()


def test_colours_of_text_stand_out():
    """By at least 4.5 to 1, what WCAG 2 asks of text."""
    for version in range(6):
        for is_forward in (True, False):
            assert contrast(*colours(version, is_forward)) >= 4.5


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    lighter, darker = sorted((relative_luminance(one), relative_luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def relative_luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_pictures(tmp_path, capsys):
    svg, png = tmp_path / "x.svg", tmp_path / "x.png"
    arguments = ["num_stages=2", "num_micro_batches=2", "json=true"]
    assert main(["compare", "schedules=1f1b,2bw", *arguments, f"out={svg}"]) == EXIT_DONE
    assert main(["show", "schedule=wpipe", *arguments, f"out={png}"]) == EXIT_DONE
    capsys.readouterr()
    texts = ["".join(element.itertext()) for element in ElementTree.parse(svg).iter() if element.tag.endswith("}text")]
    assert [text for text in texts if text.startswith(("one_f_one_b: bubble 33.3%", "two_bw: bubble"))] != []
    for micro_batch in range(6):  # forward and backward, on two stages, in two panels; the axes have numbers as well
        assert texts.count(str(micro_batch)) >= 8
    assert image.imread(png).std() > 0.1


def test_pictures_of_the_same_schedule_are_the_same_file(tmp_path, capsys):
    one, other = tmp_path / "1.svg", tmp_path / "2.svg"
    for path in (one, other):
        assert main(["show", "schedule=2bw", "num_stages=2", "num_micro_batches=2", "json=true", f"out={path}"]) == 0
    capsys.readouterr()
    assert one.read_bytes() == other.read_bytes()


def test_the_trace_has_every_action_on_its_stage(tmp_path, capsys):
    path = tmp_path / "trace.json"
    assert main([*SHOW, "json=true", f"trace={path}"]) == EXIT_DONE
    capsys.readouterr()
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 4 * 3 * (4 + 4 + 1)
    assert {event["tid"] for event in slices} == {0, 1, 2, 3}
    assert slices[0] == {
        "ph": "X",
        "name": "F0.0@0",
        "cat": "forward",
        "pid": 0,
        "tid": 0,
        "ts": 0.0,
        "dur": 1000.0,
        "args": {"batch": 0, "chunk": 0, "version": 0, "micro_batch": 0},
    }
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == [f"stage {stage}" for stage in range(4)]
    assert trace(timeline(build("gpipe", 1, 1, 1)))["displayTimeUnit"] == "ms"


def test_a_schedule_goes_through_a_file(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    assert main([*SHOW, "json=true", f"out={path}"]) == EXIT_DONE
    first = json.loads(capsys.readouterr().out)
    assert main(["show", f"schedule={path}", "json=true"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out) == first

    path.write_text(path.read_text().replace("F0.0@0 SA0.0>1", "SA0.0>1 F0.0@0", 1))
    assert main(["show", f"schedule={path}", "json=true"]) == EXIT_BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: schedule two_bw, stage 0, action 0 (SA0.0>1): its forward is not there yet")
    assert "[F0.0@0]" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["draw"], "command=draw: expected one of show, compare"),
        (["show"], "schedule=???: expected a value"),
        (["show", "schedule=nope"], "schedule=nope: expected one of gpipe"),
        (["show", "schedule=2bw", "num_stages=0"], "num_stages=0: expected 1 or more"),
        (["show", "schedule=2bw", "num_micro_batches=3"], "num_micro_batches=3: expected at least num_stages=4"),
        (["show", "schedule=2bw", "batches=0"], "batches=0: expected 1 or more"),
        (["show", "schedule=2bw", "num_chunks=2"], "num_chunks=2: this schedule has 1"),
        (
            ["show", "schedule=2bw", "stages=4"],
            "stages=4: no such key; did you mean num_stages? ",
        ),
        (["show", "schedule=2bw", "num_stages=four"], "num_stages=four: value 'four' of type 'str' could not be"),
        (["show", "schedule=2bw", "json=maybe"], "json=maybe: value 'maybe' is not a valid bool"),
        (["show", "schedule=2bw", "forward=[1,2"], "forward=[1,2: expected a YAML value"),
        (["show", "schedule=2bw", "forward=[1,2]"], "forward=[1, 2]: expected a number, zero or more, or a list"),
        (["show", "2bw"], "argument=2bw: expected key=value"),
        (["show", "schedule=2bw", "out=x.gif"], "out=x.gif: expected a file in .svg, .png, .pdf, .txt"),
        (["show", "schedule=2bw", "out=none/x.txt"], "out=none/x.txt: cannot be written: No such file"),
        (["show", "schedule=2bw", "out=none/x.svg"], "out=none/x.svg: cannot be written: No such file"),
        (["show", "schedule=none.txt"], "schedule=none.txt: cannot be read: No such file"),
        (["compare", "schedules=1f1b", "trace=x.json"], "trace=x.json: no such key"),
        (["compare", "schedules={a: 1}"], "schedules={'a': 1}: expected names with commas between them"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert main(arguments) == EXIT_BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1


def test_the_command_runs_and_needs_no_torch():
    script = "import runpy, sys; sys.argv[1:] = {!r}; runpy.run_module('asyncpp.schedule', run_name='__main__')"
    check = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); "
    command = [sys.executable, "-c", check + script.format([*SHOW, "json=true"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["schedule"] == "two_bw"
    assert done.stderr == "False\n"


def test_help_says_what_there_is(capsys):
    assert main(["--help"]) == EXIT_DONE
    assert "schedules=NAME" in capsys.readouterr().out


def test_brief_lists():
    assert brief([2, 2, 2]) == "2"
    assert brief([4, 4, 3.5, 1]) == "4 x2, 3.5, 1"


def test_the_report_is_plain():
    numbers = report(timeline(build("interleaved", 2, 2, 1)))
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["peak_weight_versions"] == [1, 1, 1, 1]  # by part: two stages with two chunks each
