"""Makes the shared helper modules of tests/ importable."""

import sys
from pathlib import Path

for folder in ("tests", "tests/integration"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
