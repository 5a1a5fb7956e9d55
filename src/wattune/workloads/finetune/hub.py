"""The local cache of the Hugging Face Hub first, the network only when something is missing and only after a quick look.

Left alone, the libraries ask the network first and retry for most of a minute where there is none. Here they are kept
offline; what the cache lacks is fetched after a connection was tried for `CONNECT_S`, and otherwise refused with what to type.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.io import is_file, is_folder, read_json

CONNECT_S = 1.2
"""How long a connection to the Hub is tried before it counts as out of reach."""

ENDPOINT = "https://huggingface.co"
_OFFLINE_NAMES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")

_SMALL = (
    "config.json",
    "generation_config.json",
    "*.model",
    "*.txt",
    "*.jinja",
    "*token*.json",
    "vocab.json",
    "merges.txt",
)
_SAFE = ("*.safetensors", "*.safetensors.index.json")
_PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
_DATA = (
    "*.parquet",
    "*.csv",
    "*.tsv",
    "*.json",
    "*.jsonl",
    "*.txt",
    "*.arrow",
    "*.json.gz",
    "*.jsonl.gz",
    "README.md",
)

SAVE_AGAIN = "Save the model again with `model.save_pretrained`, or fetch it again."
_OURS = "WATTUNE_KEEPS_OFFLINE"
"""Says to a process started from here that the variables above are our doing; the user's wish is its value, ``1`` or ``0``."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, else its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]


def keep_offline() -> None:
    """Keep the libraries from the network, quiet and without telemetry; before or after they are imported."""
    if _OURS not in os.environ:
        wish = any(os.environ.get(name, "").strip().lower() in _TRUE for name in _OFFLINE_NAMES)
        os.environ[_OURS] = "1" if wish else "0"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for library in ("httpx", "httpx2", "urllib3", "filelock"):  # a line for every request
        logging.getLogger(library).setLevel(logging.WARNING)
    _set_offline(True)


def _set_offline(value: bool) -> None:
    for name in _OFFLINE_NAMES:
        if value:
            os.environ[name] = "1"
        else:
            os.environ.pop(name, None)
    for module in ("huggingface_hub.constants", "datasets.config"):
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = value  # type: ignore[attr-defined]
    hub = sys.modules.get("huggingface_hub")
    if hub is not None:
        for name in ("close_session", "reset_sessions"):  # sessions made before know the old value
            with contextlib.suppress(AttributeError):
                getattr(sys.modules["huggingface_hub.utils"], name)()


@contextlib.contextmanager
def _online() -> Iterator[None]:
    _set_offline(False)
    try:
        yield
    finally:
        _set_offline(True)


def _hub() -> Any:
    keep_offline()
    try:
        import huggingface_hub
    except ImportError as error:
        raise BoardError(
            "Fine-tuning needs torch, transformers, datasets, accelerate and peft, which are not installed.",
            "The extra `train` was expected.",
            "Install it with `make setup EXTRAS=train` or `pip install 'wattune[train]'`.",
        ) from error
    return huggingface_hub


def why_unreachable() -> str | None:
    """Why the Hub is out of reach, found out within about `CONNECT_S`; None where it answers."""
    if os.environ.get(_OURS) == "1":
        return "HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT", ENDPOINT)
    url = urlsplit(endpoint)
    proxy = os.environ.get(f"{url.scheme}_proxy") or os.environ.get(f"{url.scheme.upper()}_PROXY")
    via = urlsplit(proxy) if proxy else url
    host, port = via.hostname, via.port or (443 if via.scheme == "https" else 80)
    if host is None:
        return f"'{endpoint}' is no address"
    faults: list[str] = ["no answer"]

    def attempt() -> None:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            faults.clear()
        except OSError as error:
            faults[:] = [error.strerror or str(error) or "no answer"]

    # In a thread: looking up the name has no time-out of its own.
    thread = threading.Thread(target=attempt, daemon=True, name="reach the hub")
    thread.start()
    thread.join(CONNECT_S)
    return f"{host} cannot be reached ({faults[0]})" if faults else None


def _no_network(what: str, why: str, fetch: str) -> BoardError:
    return BoardError(
        f"{what} {'are' if ' and the' in what else 'is'} not in the local cache, and {why}.",
        "With a network that is downloaded; without, it must be in the cache.",
        f"On a machine with a network run `wattune fetch {fetch}`, which fills {cache_folder()}; then take that folder along.",
    )


def cache_folder() -> Path:
    """Where the Hub's files lie on this machine, by the variables that its libraries read."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    return _home() / "hub"


def _home() -> Path:
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def _traces(kind: str, name: str) -> bool:
    """Whether the cache knows anything of a repository; looked up without importing any library."""
    if (cache_folder() / f"{kind}s--{name.replace('/', '--')}" / "snapshots").is_dir():
        return True
    if kind != "dataset":
        return False
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or _home() / "datasets").expanduser()
    return (prepared / name.replace("/", "___")).is_dir()


def check_at_hand(model: str, data: str, fetch: str) -> None:
    """Refuse at once what is neither here nor within reach, before anything heavy is imported.

    Args:
        model: a folder, or an id of the Hub; empty for none.
        data: an id of the Hub; empty for none.
        fetch: what to say after `wattune fetch` in a message.

    Raises:
        BoardError: not in the cache and no network.
    """
    keep_offline()
    missing = []
    if model and not is_folder(Path(model).expanduser()) and not _traces("model", model):
        missing.append(f"The model {model}")
    if data and not _traces("dataset", data):
        missing.append(f"The data set {data}")
    if missing:
        why = why_unreachable()
        if why is not None:
            raise _no_network(
                " and ".join([missing[0], *(m[0].lower() + m[1:] for m in missing[1:])]), why, fetch
            )


# --- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetched:
    """What was put into the cache, or found there.

    Attributes:
        name: the repository.
        folder: where it lies.
        size_mb: of its files, MB.
    """

    name: str
    folder: Path
    size_mb: float


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration in a checkpoint's folder.

    Raises:
        InputError: none, or no JSON object.
    """
    path = folder / "config.json"
    document = read_json(path, "The configuration", SAVE_AGAIN)
    if not isinstance(document, dict):
        raise InputError(
            f"{path} is no JSON object.", "A Hugging Face configuration was expected.", SAVE_AGAIN
        )
    return document


def _weights(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def refuse_pickle(folder: Path, name: str, *, trust_pickle: bool) -> None:
    """Refuse a checkpoint without safetensors, unless a pickle is trusted.

    Raises:
        IntegrityError: its weights are a pickle.
        InputError: it has no weights at all.
    """
    if _weights(folder, ("*.safetensors",)):
        return
    pickles = _weights(folder, ("*.bin", "*.pt", "*.pth", "*.ckpt"))
    if not pickles:
        raise InputError(
            f"There are no weights in {name}.",
            "model.safetensors was expected.",
            "Give a whole checkpoint, or take random weights (`--random-weights`, from_config).",
        )
    if not trust_pickle:
        raise _pickle_refused(name, pickles[0].name)


def _pickle_refused(name: str, file: str) -> IntegrityError:
    return IntegrityError(
        f"The weights of {name} are a pickle ({file}), which can run any code when it is loaded.",
        "model.safetensors was expected.",
        "Use a checkpoint that has it, convert this one, or say `--trust-pickle` (trust_pickle) if you trust its source.",
    )


def model_folder(name: str, *, revision: str, trust_pickle: bool, weights: bool, fetch: str) -> Path:
    """The folder of a checkpoint: a local one, from the cache, or fetched now.

    Args:
        name: a folder, or an id of the Hub.
        revision: of the repository; empty for its main one.
        trust_pickle: accept weights without safetensors.
        weights: whether they are needed, not only configuration and tokenizer.
        fetch: what to say after `wattune fetch` in a message.

    Raises:
        InputError: no such folder or repository, or files that are missing.
        IntegrityError: its weights are a pickle.
        BoardError: not in the cache and no network.
    """
    local = Path(name).expanduser()
    if is_folder(local):
        if not is_file(local / "config.json"):
            raise InputError(
                f"There is no config.json in {name}.",
                "A folder written by `save_pretrained` was expected.",
                "Give such a folder, or an id of the Hub.",
            )
        folder = local
    else:
        folder = cached_model(name, revision, weights=weights, trust_pickle=trust_pickle) or _fetch_model(
            name, revision, trust_pickle=trust_pickle, weights=weights, fetch=fetch
        )
    if weights:
        refuse_pickle(folder, name, trust_pickle=trust_pickle)
    return folder


def _patterns(trust_pickle: bool, weights: bool) -> list[str]:
    return [*_SMALL, *(_SAFE if weights else ()), *(_PICKLED if weights and trust_pickle else ())]


def cached_model(name: str, revision: str, *, weights: bool, trust_pickle: bool = False) -> Path | None:
    """The folder of a checkpoint in the cache; None where it is not there, or not whole."""
    hub = _hub()
    try:
        folder = Path(
            hub.snapshot_download(
                name,
                revision=revision or None,
                local_files_only=True,
                allow_patterns=_patterns(trust_pickle and not _has_safe(name, revision), weights),
            )
        )
    except Exception:  # noqa: BLE001  # each version says "not complete" or "not there" with another kind
        return None
    found = _weights(folder, ("*.safetensors", "pytorch_model*.bin"))
    return folder if (folder / "config.json").is_file() and (found or not weights) else None


def _has_safe(name: str, revision: str) -> bool:
    """Whether the cache holds safetensors of a repository: then no pickle is asked for."""
    found = _hub().try_to_load_from_cache(name, "model.safetensors", revision=revision or None)
    index = _hub().try_to_load_from_cache(name, "model.safetensors.index.json", revision=revision or None)
    return isinstance(found, str) or isinstance(index, str)


def _fetch_model(name: str, revision: str, *, trust_pickle: bool, weights: bool, fetch: str) -> Path:
    hub = _hub()
    why = why_unreachable()
    if why is not None:
        raise _no_network(f"The model {name}", why, fetch)
    with _online(), _hub_errors("model", name, fetch):
        info = hub.HfApi().model_info(name, revision=revision or None, files_metadata=True)
        files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        safe = any(file.endswith(".safetensors") and "/" not in file for file in files)
        pickles = [
            file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt")) and "/" not in file
        ]
        if weights and not safe and not trust_pickle and pickles:
            raise _pickle_refused(name, pickles[0])
        patterns = _patterns(trust_pickle and not safe, weights)
        return Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=patterns))


# --- data sets ------------------------------------------------------------------------------------------------------


def _data_patterns(subset: str) -> list[str]:
    return [f"{subset}/*", "README.md"] if subset else list(_DATA)


def load_dataset(repo: str, subset: str) -> Any:
    """A data set of the Hub as a mapping of splits, from the cache or fetched now.

    Raises:
        InputError: no such repository or configuration.
        BoardError: `datasets` is missing, or it is not in the cache and there is no network.
    """
    _hub()
    try:
        import datasets
    except ImportError as error:
        raise BoardError(
            "Reading a data set of the Hub needs the package `datasets`, which is not installed.",
            "The extra `train` was expected.",
            "Install it with `make setup EXTRAS=train` or `pip install 'wattune[train]'`.",
        ) from error
    datasets.disable_progress_bars()
    folder = _cached_dataset(repo, subset)
    if folder is None:
        with contextlib.suppress(
            Exception
        ):  # what `datasets` itself prepared some time, kept in a cache of its own
            return datasets.load_dataset(repo, subset or None)
        folder = fetch_dataset(repo, subset).folder
    return _open_dataset(datasets, folder, repo, subset)


def _open_dataset(datasets: Any, folder: Path, repo: str, subset: str) -> Any:
    files = sorted((folder / subset).glob("*.parquet")) if subset else []
    try:
        if files:  # NAME-00000-of-00001.parquet, one or more for each split
            splits: dict[str, list[str]] = {}
            for path in files:
                splits.setdefault(path.name.split("-")[0].removesuffix(".parquet"), []).append(str(path))
            return {name: datasets.Dataset.from_parquet(paths) for name, paths in splits.items()}
        return datasets.load_dataset(str(folder), subset or None)
    except OSError:
        raise
    except Exception as error:  # builders raise many kinds
        raise InputError(
            f"The data set {repo} could not be read: {first_line(error)}.",
            "Parquet, CSV or JSON files were expected; scripts of data sets are not run.",
            "Save it with `save_to_disk` and give that folder.",
        ) from error


def _cached_dataset(repo: str, subset: str) -> Path | None:
    try:
        folder = Path(
            _hub().snapshot_download(
                repo, repo_type="dataset", local_files_only=True, allow_patterns=_data_patterns(subset)
            )
        )
    except Exception:  # noqa: BLE001  # as for models
        return None
    held = any((folder / subset).glob("*.parquet")) if subset else any(folder.rglob("*.*"))
    return folder if held else None


def fetch_dataset(repo: str, subset: str) -> Fetched:
    """Download a data set, or one configuration of it, into the cache.

    Raises:
        InputError: no such repository or configuration.
        BoardError: no network, or the disk is full.
    """
    hub = _hub()
    fetch = f"MODEL {repo}"
    why = why_unreachable()
    if why is not None:
        cached = _cached_dataset(repo, subset)
        if cached is None:
            task = f"MODEL {subset}" if subset else fetch
            raise _no_network(f"The data set {repo}" + (f" ({subset})" if subset else ""), why, task)
        return Fetched(repo, cached, _size_mb(cached, subset))
    with _online(), _hub_errors("data set", repo, fetch):
        folder = Path(hub.snapshot_download(repo, repo_type="dataset", allow_patterns=_data_patterns(subset)))
    if subset and not (folder / subset).is_dir():
        raise InputError(
            f"The data set {repo} has no files for '{subset}'.", "A configuration of it was expected."
        )
    return Fetched(repo, folder, _size_mb(folder, subset))


def fetch_model(name: str, *, revision: str, trust_pickle: bool, fetch: str) -> Fetched:
    """Download a checkpoint into the cache; what is there already is not downloaded again.

    Raises:
        InputError: no such repository.
        IntegrityError: its weights are a pickle.
        BoardError: no network, or the disk is full.
    """
    folder = model_folder(name, revision=revision, trust_pickle=trust_pickle, weights=True, fetch=fetch)
    return Fetched(name, folder, _size_mb(folder, ""))


def _size_mb(folder: Path, subset: str) -> float:
    return sum(path.stat().st_size for path in (folder / subset).rglob("*") if path.is_file()) / 1e6


@contextlib.contextmanager
def _hub_errors(kind: str, name: str, fetch: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one of our sentences."""
    from huggingface_hub import errors  # not by `_hub`, which would go offline again

    try:
        yield
    except (BoardError, InputError, IntegrityError):
        raise
    except errors.GatedRepoError as error:
        raise InputError(
            f"The {kind} {name} is handed out after asking only.", "Access on the Hub was expected.",
            f"Ask for it at {ENDPOINT}/{name}, then `hf auth login`.",
        ) from error  # fmt: skip
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"The Hub has no {kind} '{name}' (or it is private).", "An id like owner/name was expected.",
            "Check the spelling; for a private one `hf auth login` first.",
        ) from error  # fmt: skip
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError):
            raise BoardError(
                f"The {kind} {name} could not be stored: {error.strerror}.",
                "Room and permission in the cache were expected; what was downloaded so far is kept.",
                f"Free some space in {cache_folder()} (or set HF_HOME) and run `wattune fetch {fetch}` again.",
            ) from error
        raise _broken_off(kind, name, error, fetch) from error
    except Exception as error:  # the client's HTTP library raises its own kinds
        raise _broken_off(kind, name, error, fetch) from error


def _broken_off(kind: str, name: str, error: BaseException, fetch: str) -> BoardError:
    return BoardError(
        f"The {kind} {name} could not be downloaded: {first_line(error)}.",
        "An answer of the Hub was expected; what was downloaded so far is kept.",
        f"Run `wattune fetch {fetch}` again: it goes on where it stopped.",
    )
