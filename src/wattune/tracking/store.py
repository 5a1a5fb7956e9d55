"""Where runs and models are kept: the tracking store, reached over HTTP so that artifacts are proxied.

A server named by ``MLFLOW_TRACKING_URI`` is talked to directly. For a SQLite store a private server runs for as long
as it is needed. Either way artifact locations read ``mlflow-artifacts:/...``: they name no folder of this machine, so
a moved checkout, `make ui` and another machine all find them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.io import clear_os_errors, is_file, kind_of

HEALTH_TIMEOUT_S = 5.0
START_TIMEOUT_S = 120.0
LOCK_TIMEOUT_S = 120.0
LOCALHOST = "127.0.0.1"

# Runs the server, and kills its whole process group when it ends or when our end of the pipe closes, even by SIGKILL.
_GUARD = '("$@"; kill -9 0) </dev/null & cat >/dev/null; kill -9 0'
_FOREIGN_SETTINGS = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_BACKEND_STORE_URI",
    "MLFLOW_REGISTRY_STORE_URI",
    "MLFLOW_DEFAULT_ARTIFACT_ROOT",
    "MLFLOW_ARTIFACTS_DESTINATION",
    "MLFLOW_SERVE_ARTIFACTS",
)


def repository_root(start: Path | None = None) -> Path:
    """The nearest folder upwards with a ``dvc.yaml`` or a ``.git``; `start` itself where there is none.

    Args:
        start: where to look from; the current folder by default.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if is_file(folder / "dvc.yaml") or kind_of(folder / ".git") is not None:
            return folder
    return here


def tracking_uri(start: Path | None = None) -> str:
    """``MLFLOW_TRACKING_URI``, else ``sqlite:///<repository root>/mlflow.db`` (always absolute).

    A temporary clone of `dvc exp run --temp` lies inside its repository and shares that repository's store, so that
    what it publishes is not lost with it.

    Args:
        start: a folder of the repository; the current folder by default.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return uri
    root = repository_root(start)
    parts = root.parts
    for index in range(len(parts) - 2):
        if parts[index : index + 3] == (".dvc", "tmp", "exps"):
            root = repository_root(Path(*parts[:index]))
            break
    return f"sqlite:///{root / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """The absolute file of a SQLite URI; None for a server's address.

    Raises:
        InputError: the URI is of neither kind.
        IntegrityError: a file lies there that is no database.
    """
    if re.match(r"https?://", uri):
        return None
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    if match is None or match[1] == ":memory:":
        raise InputError(
            f"The tracking store '{uri}' cannot be used.",
            "sqlite:///<file> or the http(s) address of an MLflow server was expected.",
            "Correct or unset MLFLOW_TRACKING_URI.",
        )
    db = Path(match[1]).resolve()
    if is_file(db):
        _check_database(db)
    return db


def _check_database(db: Path) -> None:
    """Refuse a damaged store before MLflow meets it, in whose words nobody would know it again."""
    try:
        with contextlib.closing(sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("select name from sqlite_master").fetchall()
    except sqlite3.OperationalError:  # locked, or not to be opened: no matter of what is in it
        return
    except sqlite3.DatabaseError as error:
        name, aside = shlex.quote(str(db)), shlex.quote(f"{db}.damaged")
        raise IntegrityError(
            f"{db} is no SQLite database ({error}).",
            "The runs and models that were published were expected in it.",
            f"Move it away (`mv {name} {aside}`) and type `wattune publish`, which makes it anew from the pipeline's files.",
        ) from error


def artifacts_folder(db: Path) -> Path:
    """The folder in which a SQLite store's artifacts lie."""
    return db.parent / "mlartifacts"


def server_command(db: Path, host: str, port: int) -> list[str]:
    """The command of an MLflow server for a SQLite store, artifacts proxied, one worker."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{db}", "--registry-store-uri", f"sqlite:///{db}"),
        *("--serve-artifacts", "--artifacts-destination", str(artifacts_folder(db))),
    ]


def server_environment() -> dict[str, str]:
    """The environment of a server: ours, without settings that would send it to another store, and no job runner."""
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN_SETTINGS}
    return kept | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONWARNINGS": "ignore"}


def require(*modules: str, extra: str) -> None:
    """Check that optional packages are installed, without importing them.

    Raises:
        BoardError: one is not; the message names the extra that brings it.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise BoardError(
                f"The Python package '{module}' is not installed.",
                "It is part of an optional set of packages.",
                f"Install it with `pip install 'wattune[{extra}]'`.",
            )


def is_up(address: str, timeout_s: float = HEALTH_TIMEOUT_S) -> bool:
    """Whether something answers HTTP at `address` within `timeout_s` seconds (a refusal is an answer)."""
    handlers = [urllib.request.ProxyHandler({})] if f"//{LOCALHOST}:" in address else []
    try:
        with urllib.request.build_opener(*handlers).open(f"{address.rstrip('/')}/health", timeout=timeout_s):
            return True
    except urllib.error.HTTPError as error:
        return error.code not in (502, 503, 504)
    except (OSError, ValueError):
        return False


def check_server(address: str, hint: str) -> None:
    """Check that a tracking server answers.

    Args:
        address: its http(s) address.
        hint: what to do where it does not.

    Raises:
        BoardError: nothing answers.
    """
    if not is_up(address):
        raise BoardError(
            f"The MLflow server {address} does not answer.", "A running server was expected.", hint
        )


@contextlib.contextmanager
def store_lock(db: Path) -> Iterator[None]:
    """One publisher at a time per SQLite store: two would migrate a fresh one at once, and create runs twice.

    Raises:
        BoardError: the folder cannot be written, or another publisher does not finish.
    """
    path = db.with_name(f"{db.name}-lock")
    with clear_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    with handle:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BoardError(
                        f"Another publisher has held {db} for {LOCK_TIMEOUT_S:g} s.",
                        "It should end within seconds.",
                        "Wait for it or end it, then run `wattune publish`.",
                    ) from error
                time.sleep(0.2)
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return int(probe.getsockname()[1])


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


class Server:
    """An MLflow server for a SQLite store.

    It starts at once and in parallel; :meth:`address` waits until it answers. It ends with :meth:`stop`, and with
    this process, however that ends. Its log is kept only where it failed to start.

    Args:
        db: the SQLite file; made where missing.
        host: the address it listens on; this machine only by default.
        port: its port; a free one by default.
        role: part of the name of its log.

    Raises:
        BoardError: MLflow is not installed, or the folder cannot be written.
    """

    def __init__(
        self, db: Path, host: str = LOCALHOST, port: int | None = None, role: str = "server"
    ) -> None:
        require("mlflow", "flask", extra="pipeline")
        port = port or _free_port()
        self._address = f"http://{LOCALHOST if host == '0.0.0.0' else host}:{port}"  # noqa: S104  # the user's choice
        self._log = db.with_name(f"{db.name}-{role}.log")
        with clear_os_errors(self._log):
            db.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    ["sh", "-c", _GUARD, "sh", *server_command(db, host, port)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=db.parent,
                    env=server_environment(),
                    start_new_session=True,
                )

    def address(self) -> str:
        """The server's address, once it answers.

        Raises:
            BoardError: it ended or does not answer; the message names its log.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_up(self._address, timeout_s=1.0) or self._process.poll() is not None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BoardError(
                    f"The MLflow server did not start: {_last_line(self._log).rstrip('.')}.",
                    f"Its whole log is {self._log}.",
                    "The files stay; publish later with `wattune publish`.",
                )
            time.sleep(0.1)
        return self._address

    def wait(self) -> None:
        """Wait until the server ends by itself."""
        self._process.wait()

    def stop(self, keep_log: bool = False) -> None:
        """End the server and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not keep_log:
            self._log.unlink(missing_ok=True)


@contextlib.contextmanager
def connected(uri: str) -> Iterator[str]:
    """The http(s) address of the store `uri` for as long as the context lasts.

    Args:
        uri: ``sqlite:///<file>``, for which a private server runs meanwhile, or a server's address.

    Raises:
        InputError: the URI is of neither kind.
        BoardError: no server can be reached or started.
    """
    db = sqlite_file(uri)
    with impatient():
        if db is None:
            check_server(uri, "The files stay; publish later with `wattune publish`.")
            yield uri
            return
        with store_lock(db):
            server = Server(db)
            started = False
            try:
                importlib.import_module("mlflow.pyfunc")  # takes as long as the server: let them overlap
                address = server.address()
                started = True
                yield address
            finally:
                server.stop(keep_log=not started)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Let MLflow's client give up soon, and let it reach this machine past any proxy, unless the user says otherwise."""
    no_proxy = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), LOCALHOST)))
    with environment(
        MLFLOW_HTTP_REQUEST_MAX_RETRIES=os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
        MLFLOW_HTTP_REQUEST_TIMEOUT=os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", "30"),
        no_proxy=no_proxy,
        NO_PROXY=no_proxy,
    ):
        yield
