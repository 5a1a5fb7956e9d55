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
# Started by a shell in the background these are ignored, by us and by all we start; tests send them.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

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
