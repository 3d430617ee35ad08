"""The process of a cell: the run whose configuration stands in its folder.

python -m asyncpp.launcher.run_cell runs/demo/<run>
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from asyncpp.arguments import STOP_SIGNALS, exit_code_of, stop_on_signals
from asyncpp.errors import EXIT_INTERRUPTED
from asyncpp.saved_config import read_config


def main() -> int:
    stop_on_signals()

    def command() -> int:
        (folder,) = sys.argv[1:]
        config = read_config("folder", Path(folder))
        from asyncpp.trainer.run import run  # imports torch, which a wrong folder need not wait for

        return run(config)

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # those that came while this process started, too
        return exit_code_of(command)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
