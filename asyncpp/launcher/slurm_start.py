"""Starts Python in a task of Slurm, the signals of a stop held back until slurm_job.py can take them.

    python -IS slurm_start.py <arguments of Python>

A signal that came while a task still imports would otherwise kill it, and Slurm would call the job failed. It imports
nothing of asyncpp, and runs before anything else.
"""

import os
import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
