"""Makes the shared helper modules of tests/ importable, and hypothesis repeatable.

The same examples every time: a change is judged by its own faults, and not by old ones that a new draw happens to find.
`HYPOTHESIS_PROFILE=explore` draws new ones.
"""

import os
import signal
import sys
from pathlib import Path

# Tiny models: more threads than cores only get into each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Started by a shell in the background SIGINT is ignored, and a shell cannot trap what it finds ignored: tests send it to some.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

try:
    from hypothesis import settings
except ImportError:  # where only the base install is tested
    pass
else:
    settings.register_profile("repeatable", derandomize=True)
    settings.register_profile("explore", derandomize=False, max_examples=500)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

for folder in ("tests", "tests/integration"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
