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

TAKES_LONG = {
    *("test_meter_emulated", "test_lease_emulated", "test_clockd_emulated", "test_emulator_serving", "test_emulate_command"),
    *("test_doctor", "test_params", "test_learning", "test_regret_governor", "test_choose_counted", "test_unusual_input"),
    *("test_board_cases", "test_probe", "test_opcost", "test_config", "test_meter", "test_finetune_load", "test_whole_log"),
    *("test_bench_window", "test_house", "test_finetune_models", "test_caution", "test_abstention"),
    *("test_jetson_discovery", "test_tegrastats", "test_running", "test_bench_diverse", "test_bench_policies", "test_curvemodel"),
    *("test_validation_sources", "test_reference"),
}  # fmt: skip
"""Files of which all is `long`: real time, processes, or many fits. `make test-fast` is for the seconds between two edits."""


def pytest_collection_modifyitems(items: list) -> None:
    """Mark the tests of those files."""
    import pytest

    for item in items:
        if item.path.stem in TAKES_LONG:
            item.add_marker(pytest.mark.long)
