"""MLflow's web pages for the local store, artifacts proxied: ``python -m wattune.tracking.ui``.

Another machine may pull from it. The name by which others call this machine must be allowed: put it into
``MLFLOW_SERVER_ALLOWED_HOSTS``.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

from wattune.core.errors import BoardError, WattuneError
from wattune.tracking.store import (
    LOCALHOST,
    Server,
    is_up,
    sqlite_file,
    store_lock,
    tracking_uri,
)


def serve(host: str, port: int) -> None:
    """Serve the local store until interrupted; the address goes to stdout once it answers.

    Args:
        host: address to listen on; ``0.0.0.0`` for other machines too.
        port: port to listen on.

    Raises:
        BoardError: the port is taken, or the server did not start.
    """
    uri = tracking_uri()
    db = sqlite_file(uri)
    if db is None:
        sys.stdout.write(f"Runs and models are served at {uri} already (MLFLOW_TRACKING_URI).\n")
        return
    if is_up(f"http://{LOCALHOST}:{port}", timeout_s=1.0):
        raise BoardError(
            f"Port {port} is taken.",
            "A free port was expected.",
            f"Choose another: `make ui PORT={port + 1}`.",
        )
    with store_lock(db):
        server = Server(db, host, port, role="ui")
        started = False
        try:
            address = server.address()
            started = True
        finally:
            if not started:
                server.stop(keep_log=True)
    sys.stdout.write(f"MLflow is at {address} (store {db}). Ctrl-C ends it.\n")
    sys.stdout.flush()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()
    finally:
        server.stop()


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wattune.tracking.ui", description=__doc__)
    parser.add_argument(
        "--host", default=LOCALHOST, help="address to listen on, 0.0.0.0 for all (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        serve(args.host, args.port)
    except WattuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
