"""Where results come from: a stage's entry in ``dvc.lock``, or the bytes of its files, and the git commit."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.io import file_sha256, read_text, sha256_of

LOCK = Path("dvc.lock")
_LEFT_OUT = ("workloads", "workload_ids")  # hundreds of entries; their result is in the data set's digest
_LONGEST_VALUE = 500


@dataclass(frozen=True, slots=True)
class Receipt:
    """What identifies the run of a stage.

    Attributes:
        stage: its name.
        fingerprint: SHA-256 of the canonical JSON of its ``dvc.lock`` entry, or of its files' digests.
        source: ``dvc.lock``, or ``files`` where there is no entry or the files are not those it names.
        params: its parameters, flattened: ``train.seed`` -> ``0``.
    """

    stage: str
    fingerprint: str
    source: str
    params: dict[str, str]


def flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested parameters as dotted names and short texts."""
    for name, value in sorted(params.items()):
        if not prefix and name in _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_LONGEST_VALUE]


def read_lock(root: Path) -> dict[str, Any]:
    """The stages of ``dvc.lock``; empty where there is none.

    Raises:
        InputError: it is not YAML.
    """
    import yaml

    if not (root / LOCK).is_file():
        return {}
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load(read_text(root / LOCK, "The lock file"), Loader=loader)  # noqa: S506  # both are safe
    except yaml.YAMLError as error:
        name = shlex.quote(os.path.relpath(root / LOCK))
        raise InputError(
            f"{LOCK} is not YAML.",
            "It was expected as DVC wrote it, which cannot read this one either.",
            f"Type `git checkout {name}`, or `rm {name}` and then `dvc repro`.",
        ) from error
    stages = document.get("stages") if isinstance(document, dict) else None
    return stages if isinstance(stages, dict) else {}


def lock_md5(stages: Mapping[str, Any], stage: str, path: Path) -> str | None:
    """The MD5 of an output of a stage in ``dvc.lock``; None where it is not there."""
    for out in stages.get(stage, {}).get("outs", ()):
        if out["path"] == path.as_posix():
            return str(out.get("md5"))
    return None


def _as_locked(root: Path, entry: Mapping[str, Any]) -> bool:
    for out in entry.get("outs", ()):
        path, md5 = root / out["path"], str(out.get("md5"))
        if md5.endswith(".dir"):
            continue
        if not path.is_file() or hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5:
            return False
    return True


def receipt(
    root: Path, stages: Mapping[str, Any], stage: str, files: list[Path], params: Mapping[str, Any]
) -> Receipt:
    """The receipt of a stage.

    Args:
        root: the repository.
        stages: of ``dvc.lock``.
        stage: name of the stage.
        files: its outputs, for a fingerprint without a lock.
        params: parameters to report without a lock.
    """
    entry = stages.get(stage)
    if entry is not None and _as_locked(root, entry):
        locked = entry.get("params", {}).get("params.yaml", {})
        return Receipt(stage, sha256_of(entry), "dvc.lock", dict(flatten(locked)))
    digests = {path.as_posix(): file_sha256(root / path) for path in files}
    return Receipt(stage, sha256_of(digests), "files", dict(flatten(params)))


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def git_tags(root: Path) -> dict[str, str]:
    """``git.commit`` and ``git.dirty``; ``unknown`` without git or without a commit."""
    commit, status = _git(root, "rev-parse", "--verify", "HEAD"), _git(root, "status", "--porcelain")
    if commit is None or status is None:
        return {"git.commit": "unknown", "git.dirty": "unknown"}
    return {"git.commit": commit.strip(), "git.dirty": "true" if status.strip() else "false"}
