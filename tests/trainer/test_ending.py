"""What each exception means for the summary, the exit code and the user, and what a run folder makes of it."""

from __future__ import annotations

import pytest

from asyncpp import records
from asyncpp.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError
from asyncpp.pipeline.mesh import Position
from asyncpp.pipeline.runtime import ActionFailed
from asyncpp.schedule.action import backward
from asyncpp.trainer.ending import RankFailed, TrainingFailed, ending_of
from asyncpp.trainer.run_folder import open_run_folder
from asyncpp.trainer.stop import Stopped

IN_ACTION = "rank 1 (stage 1) in B3.0@2 (backward of batch 3, micro-batch 0): ValueError: planted"
AGAIN = "run the same command again to go on"


class Unforeseen(KeyError):
    pass


@pytest.mark.parametrize(
    ("error", "status", "exit_code", "cause", "message"),
    [
        (KeyboardInterrupt(), "interrupted", EXIT_INTERRUPTED, None, f"\ninterrupted; {AGAIN}"),
        (Stopped(None), "interrupted", EXIT_INTERRUPTED, None, f"\ninterrupted; {AGAIN}"),
        (
            *(Stopped(7), "interrupted", EXIT_INTERRUPTED, None),
            f"\ninterrupted after 7 updates, which are saved; {AGAIN}",
        ),
        (TrainingFailed("no"), "failed", EXIT_FAILED, "no", "error: no"),
        (RankFailed("dead", "its traceback\n"), "failed", EXIT_FAILED, "dead", "its traceback\nerror: dead"),
        (
            ActionFailed(Position(1, 2, 1), backward(3, 0, 2), ValueError("planted")),
            *("failed", EXIT_FAILED, IN_ACTION, f"error: {IN_ACTION}"),
        ),
        (records.RunIsLocked("held"), "failed", EXIT_FAILED, "held", "error: held"),
        (Unforeseen("x"), "failed", EXIT_FAILED, "Unforeseen: 'x'", f"{__name__}.Unforeseen: 'x'"),
    ],
)
def test_every_exception_has_its_ending(error, status, exit_code, cause, message):
    ending = ending_of(error)
    assert (ending.status, ending.exit_code) == (status, exit_code)
    assert ending.cause(error) == cause
    assert ending.message(error) == message


@pytest.fixture
def config(make_config, tmp_path):
    return make_config(f"runs_dir={tmp_path}")


def test_what_ends_a_run_is_its_summary_and_goes_on(config):
    with pytest.raises(TrainingFailed), open_run_folder(config) as folder:
        folder.note(data_digest="of these")
        raise TrainingFailed("no finite gradient")
    summary = records.read_summary(config.folder)
    assert (summary["status"], summary["error"]) == ("failed", "no finite gradient")
    assert summary["data_digest"] == "of these" and "val_loss" not in summary
    with pytest.raises(KeyboardInterrupt), open_run_folder(config):
        raise KeyboardInterrupt
    summary = records.read_summary(config.folder)
    assert summary["status"] == "interrupted" and "error" not in summary


def test_what_the_user_is_to_mend_leaves_no_summary(config):
    with pytest.raises(ConfigError), open_run_folder(config):
        raise ConfigError("resume", "there", "expected another")
    assert records.read_summary(config.folder) is None


def test_a_run_folder_is_for_one_process_and_not_opened_again_when_it_is_finished(config):
    with open_run_folder(config) as folder:
        with pytest.raises(records.RunIsLocked), open_run_folder(config):
            pass
        row = '{"step": %d, "pipeline/staleness_updates": 1}\n'
        steps = range(config.trainer.num_steps)
        (folder.path / records.METRICS_FILE).write_text("".join(row % step for step in steps))
        folder.finish({"val/loss": 2.5})
    summary = records.read_summary(config.folder)
    assert (summary["status"], summary["val_loss"], summary["staleness_updates"]) == ("finished", 2.5, 1)
    assert (summary["delay"], summary["delay_varies"]) == ("one_step", False)
    with open_run_folder(config) as folder:
        assert folder is None
    assert records.read_summary(config.folder) == summary
