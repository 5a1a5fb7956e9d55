"""MLflow's web pages for the local store, artifacts proxied: ``python -m wattune.tracking.ui``.

Another machine may pull from it. The name by which others call this machine must be allowed: put it into
``MLFLOW_SERVER_ALLOWED_HOSTS``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import urllib.request

from wattune.core.errors import BoardError, WattuneError
from wattune.core.numbers import whole_number
from wattune.tracking.pages import POLICIES_VIEW, view_link
from wattune.tracking.store import (
    LOCALHOST,
    Server,
    is_up,
    sqlite_file,
    store_lock,
    tracking_uri,
)


def published(address: str) -> list[tuple[str, str]]:
    """Names and ids of the experiments that a server has and Wattune published; none where it does not say."""
    request = urllib.request.Request(  # noqa: S310  # our own server
        f"{address}/api/2.0/mlflow/experiments/search",
        data=json.dumps({"max_results": 100, "filter": "name LIKE 'wattune/%'"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            found = json.load(answer).get("experiments", [])
    except (OSError, ValueError):
        return []
    return sorted((str(item["name"]), str(item["experiment_id"])) for item in found)


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
    for name, experiment_id in published(address):
        sys.stdout.write(
            f"Policies of {name}, side by side: {address}/{view_link(experiment_id, POLICIES_VIEW)}\n"
        )
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
    parser.add_argument(
        "--port", type=whole_number, default=5000, help="port to listen on (default: %(default)s)"
    )
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
