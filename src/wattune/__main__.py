"""`python -m wattune` is the `wattune` command."""

import sys

from wattune.cli import main

sys.exit(main())
