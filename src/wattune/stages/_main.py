"""What every stage shares: logging from ``LOG_LEVEL``, foreseeable faults as one message and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from wattune.core.errors import InputError, WattuneError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure_logging() -> None:
    """Send messages to stderr at the level named by ``LOG_LEVEL`` (default ``INFO``).

    Raises:
        InputError: the level is unknown.
    """
    level = os.environ.get("LOG_LEVEL", "").strip().upper() or "INFO"
    if level not in _LEVELS:
        raise InputError(f"LOG_LEVEL is '{level}'.", f"One of {', '.join(_LEVELS)} was expected.")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("wattune", "__main__"):  # a stage run with `python -m` logs under the latter
        logging.getLogger(name).setLevel(level)


def run(main: Callable[[], None]) -> int:
    """Run a stage.

    Args:
        main: the stage; it raises where it cannot go on.

    Returns:
        The exit code: 0, that of a foreseeable fault (its message went to stderr), or 130 when interrupted.
        Anything else is a bug and keeps its traceback.
    """
    try:
        configure_logging()
        main()
    except WattuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(
            "Interrupted; nothing half-written was left behind. Run the same command to go on.\n"
        )
        return 130
    return 0
