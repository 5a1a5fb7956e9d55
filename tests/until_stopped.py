"""Runs a command that goes on until Ctrl-C, and stops it once it is under way: ``until_stopped.py PATTERN COMMAND``.

Its output is passed on; it gets Ctrl-C when a line of it matches PATTERN, and what it then ends with is the exit code here.
"""

import os
import re
import signal
import subprocess
import sys


def main() -> int:
    pattern, command = sys.argv[1:]
    running = subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert running.stdout
    seen = False
    for line in running.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if not seen and re.search(pattern, line):
            seen = True
            os.killpg(running.pid, signal.SIGINT)
    code = running.wait()
    return code if seen else code or 99


if __name__ == "__main__":
    sys.exit(main())
