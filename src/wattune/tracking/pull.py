"""Pulling: a registered governor fetched, checked and written atomically; the last good file stays on any failure.

A folder or file needs the standard library only. A tracking store needs MLflow; ``mlflow-skinny`` is enough.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError, IntegrityError, WattuneError
from wattune.core.governor import Governor, parse_governor
from wattune.io import is_file, is_folder, kind_of, read_data, write_bytes
from wattune.tracking.results import GOVERNOR
from wattune.tracking.store import (
    artifacts_folder,
    check_server,
    impatient,
    repository_root,
    require,
    sqlite_file,
    tracking_uri,
)

PREFIX = "wattune-"
IN_MODEL = "artifacts/governor.json"
PROXIED = "mlflow-artifacts:"
_PLACES = (Path("governor.json"), GOVERNOR, Path(IN_MODEL))


@dataclass(frozen=True)
class Pulled:
    """A governor that was pulled; its text is one line for people.

    Attributes:
        source: where it came from, e.g. ``wattune-<board>-<provenance> version 2 (champion)``.
    """

    governor: Governor
    source: str

    def __str__(self) -> str:
        governor = self.governor
        return f"{self.source}: {governor.policy} for {governor.board}, {governor.provenance}, digest {governor.digest[:12]}"


def pull(
    uri: str | None = None,
    output: Path = Path("governor.json"),
    check: Callable[[Governor], object] | None = None,
) -> Pulled:
    """Fetch a governor, check it and write it; the last good one is kept beside it as ``<output>.last``.

    Args:
        uri: ``models:/NAME@ALIAS``, ``models:/NAME/VERSION``, ``models:/NAME`` (its champion), a folder or file with a
            governor.json, the http(s) address of a tracking server, or None: the champion in the default store.
        output: file to write; replaced only by a checked governor.
        check: refuses by raising what may be sound and is still not wanted here.

    Returns:
        What was written.

    Raises:
        InputError: the source does not exist, or names no champion.
        BoardError: the store cannot be reached, MLflow is missing, or the file cannot be written.
        IntegrityError: the file is damaged, or not the one that was registered.
    """
    if uri is not None and not re.match(r"(models:|https?://)", uri):
        _check_place(uri)
        data, source = _from_folder(Path(uri)), uri
    else:
        data, source = _from_store(uri)
    governor = parse_governor(data)
    if check is not None:
        check(governor)
    _keep_last(output, governor)
    write_bytes(output, data)
    return Pulled(governor, source)


def _check_place(text: str) -> None:
    """Refuse what is neither a path nor an address that we fetch from."""
    expected = (
        "models:/NAME@ALIAS, the http(s) address of a tracking server, a folder or a file was expected."
    )
    if not text.strip():
        raise InputError(
            "The address of the governor is empty.",
            expected,
            "For example `wattune pull models:/NAME@champion`.",
        )
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", text)
    if scheme is None or kind_of(Path(text)) is not None:
        return
    hints = {
        "file": "Name the path alone, without file://.",
        "runs": "Register the model, and pull it with `wattune pull models:/NAME@champion`.",
    }
    raise InputError(
        f"'{text[:80]}' cannot be pulled: addresses with {scheme[1]}: are not supported.",
        expected,
        hints.get(scheme[1].lower(), "Copy the file to this machine, and name its path."),
    )


def _keep_last(output: Path, new: Governor) -> None:
    """Copy a sound governor that is about to be replaced by another one."""
    try:
        data = output.read_bytes()
        if parse_governor(data).digest == new.digest:
            return
    except (OSError, IntegrityError):
        return
    write_bytes(output.with_name(f"{output.name}.last"), data)


def _from_folder(path: Path) -> bytes:
    candidates = [path / place for place in _PLACES] if is_folder(path) else [path]
    for candidate in candidates:
        if is_file(candidate):
            return read_data(candidate, "The governor")
    raise InputError(
        f"There is no governor at {path}.",
        "A governor.json or a folder that holds one was expected; registered models start with 'models:/'.",
        "For example `wattune pull models:/NAME@champion`.",
    )


@dataclass(frozen=True)
class _Wanted:
    name: str
    alias: str | None
    version: str | None


def _parse(uri: str) -> _Wanted:
    match = re.fullmatch(r"models:/+([^@/]+)(?:@([^@/]+)|/(\d+))?", uri)
    if match is None:
        raise InputError(
            f"'{uri}' is not the address of a registered model.",
            "models:/NAME@ALIAS or models:/NAME/VERSION was expected.",
            "For example `wattune pull models:/NAME@champion`.",
        )
    name, alias, version = match.groups()
    return _Wanted(name, alias or (None if version else "champion"), version)


def check_address(uri: str) -> None:
    """Refuse the address of a registered model that is none, before anybody is asked for it.

    Raises:
        InputError: it is none.
    """
    _parse(uri)


def _from_store(uri: str | None) -> tuple[bytes, str]:
    store = uri if uri is not None and uri.startswith("http") else tracking_uri()
    wanted = _parse(uri) if uri is not None and uri.startswith("models:") else None
    db = sqlite_file(store)
    if db is not None and not is_file(db):
        raise InputError(
            f"Nothing has been published at {db}.",
            "A tracking store with a registered governor was expected.",
            "Run `make repro` first, or name a server: MLFLOW_TRACKING_URI=http://HOST:5000 wattune pull.",
        )
    if db is None:
        check_server(
            store, "Start it (`make ui` on the machine that has the models) or correct MLFLOW_TRACKING_URI."
        )
    require("mlflow", extra="pull")
    if db is not None:
        require("sqlalchemy", "alembic", extra="pull")
    with impatient(), _clear_mlflow_errors(store):
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        client = MlflowClient(tracking_uri=store, registry_uri=store)
        version = _find_version(client, wanted or _default_model(client, store))
        expected = version.tags.get("governor.digest")
        data = _download(client, version, store, db)
    governor = parse_governor(data)
    name = f"{version.name} version {version.version}"
    if governor.digest != expected:
        raise IntegrityError(
            f"The governor of {name} is not the one that was registered.",
            f"Digest {expected or 'unknown'} was expected, the file has {governor.digest}.",
            "Publish it again with `wattune publish`, or pull another version.",
        )
    aliases = f" ({', '.join(sorted(version.aliases))})" if version.aliases else ""
    return data, f"{name}{aliases}"


@contextmanager
def _clear_mlflow_errors(store: str) -> Iterator[None]:
    """Turn what MLflow raises into one sentence."""
    try:
        yield
    except WattuneError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, (MlflowException, OSError)):
            raise
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BoardError(
            f"The governor could not be fetched from {store}: {text.rstrip('.')}.",
            "What was pulled before is untouched.",
            "Check MLFLOW_TRACKING_URI and the server, then try again.",
        ) from error


def _find_version(client: Any, wanted: _Wanted) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        model = client.get_registered_model(wanted.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise InputError(
            f"There is no registered model '{wanted.name}'.",
            "A model in this store was expected.",
            _known(client),
        ) from error
    aliases = {alias: str(version) for alias, version in model.aliases.items()}
    number = wanted.version or aliases.get(str(wanted.alias))
    if number is None:
        raise _no_alias(wanted, aliases)
    try:
        return client.get_model_version(wanted.name, number)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise InputError(
            f"'{wanted.name}' has no version {number}.",
            "A version that was published was expected.",
            f"Try `wattune pull models:/{wanted.name}@challenger`.",
        ) from error


def _no_alias(wanted: _Wanted, aliases: dict[str, str]) -> InputError:
    if "challenger" in aliases:
        return InputError(
            f"'{wanted.name}' has no {wanted.alias}; its challenger is version {aliases['challenger']}.",
            "A champion is made by a gate in mode enforce whose rules all hold.",
            f"Pull it anyway with `wattune pull models:/{wanted.name}@challenger`.",
        )
    return InputError(
        f"'{wanted.name}' has no {wanted.alias}.",
        "A published governor was expected.",
        "Run `wattune publish` first.",
    )


def _names(client: Any) -> list[str]:
    return sorted(
        m.name
        for m in client.search_registered_models(filter_string=f"name LIKE '{PREFIX}%'", max_results=100)
    )


def _known(client: Any) -> str:
    names = _names(client)
    return f"It has: {', '.join(names)}." if names else "Run `make repro` and `wattune publish` first."


def _default_model(client: Any, store: str) -> _Wanted:
    """The champion of the only registered governor, or of the one this repository makes."""
    names = _names(client)
    if not names:
        raise InputError(
            f"No governor is registered at {store}.",
            "A published one was expected.",
            "Run `make repro` first.",
        )
    if len(names) == 1:
        return _Wanted(names[0], "champion", None)
    local = _local_name()
    if local in names:
        return _Wanted(local, "champion", None)
    raise InputError(
        f"Several governors are registered: {', '.join(names)}.",
        "The name of one was expected.",
        f"For example `wattune pull models:/{names[0]}@champion`.",
    )


def _local_name() -> str:
    """Name of the model this repository publishes; empty outside of one."""
    path = repository_root() / GOVERNOR
    try:
        governor = parse_governor(path.read_bytes())
    except (OSError, WattuneError):
        return ""
    return f"{PREFIX}{governor.board}-{governor.provenance}"


def _download(client: Any, version: Any, store: str, db: Path | None) -> bytes:
    location = str(client.get_model_version_download_uri(version.name, version.version)).rstrip("/")
    if db is not None and location.startswith(PROXIED):
        # The store's own folder stands behind the proxy: no server is needed to read from it.
        path = artifacts_folder(db) / location.removeprefix(PROXIED).lstrip("/") / IN_MODEL
        if not is_file(path):
            raise IntegrityError(
                f"{path} is missing, although {version.name} version {version.version} is registered.",
                f"The folder {artifacts_folder(db)} belongs to the store and was expected beside it.",
                "Publish again: remove the store and run `wattune publish`.",
            )
        return read_data(path, "The governor")
    from mlflow.artifacts import download_artifacts

    with tempfile.TemporaryDirectory() as folder:
        found = download_artifacts(
            artifact_uri=f"{location}/{IN_MODEL}", dst_path=folder, tracking_uri=store, registry_uri=store
        )
        return Path(found).read_bytes()
