"""Cells: one JSON file per workload and setting, with all repeats and the fingerprint of their protocol.

Format (``schema_version`` 1; JSON schema in ``wattune/schemas/cell.schema.json``). A cell counts only where
its fingerprint is that of the protocol asked for: board, workload with its step costs, setting, steps, repeats,
seed and ``protocol_version``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wattune.boards.base import BoardInfo
from wattune.core.errors import InputError
from wattune.core.features import FeatureValue
from wattune.core.measurement import Measurement
from wattune.core.settings import MAXN, FrequencyTable, Setting, setting_label
from wattune.core.workload import Workload
from wattune.io import clear_os_errors, sha256_of, write_json

SCHEMA_VERSION = 1
TEMPORARY = ".*.tmp"
"""Leftovers of a write that was interrupted."""

_TEXT_KEYS = ("fingerprint", "board", "provenance", "power_mode", "rails", "workload")
_FIELDS = tuple(field.name for field in dataclasses.fields(Measurement) if field.name != "setting")
_NEEDED = ("repeat", "energy_j", "time_s")


class SweepProtocol(Protocol):
    """How a sweep measures."""

    repeats: int
    steps: int
    seed: int
    protocol_version: int
    meter: str
    baseline: str


@dataclass(frozen=True, slots=True)
class Cell:
    """All repeats of one workload at one setting.

    Attributes:
        fingerprint: of the protocol it was measured under.
        features: what is known of the workload.
        repeats: measurements, by number.
        noise_free: what a perfect measurement would say; None on all but modelled boards.
        certificates: of every repeat what it rests on, in their order; empty on boards that are not measured live.
        board_digest: of the board as measured, part of the fingerprint; empty where the board can be asked again anywhere
            (modelled ones), and in cells of before it was written.
        table_mhz: clocks the board could be pinned at; empty likewise.
    """

    fingerprint: str
    board: str
    provenance: str
    power_mode: str
    rails: str
    workload: str
    setting: Setting
    features: Mapping[str, FeatureValue]
    repeats: tuple[Measurement, ...]
    noise_free: Measurement | None
    certificates: tuple[Mapping[str, Any], ...] = ()
    board_digest: str = ""
    table_mhz: tuple[float, ...] = ()

    @property
    def measured_on(self) -> BoardInfo | None:
        """The board as it was when this was measured; None where the cell does not say enough."""
        if not self.board_digest:
            return None
        return BoardInfo(
            self.board,
            self.provenance,
            self.power_mode,
            self.rails,
            FrequencyTable(self.table_mhz),
            self.board_digest,
        )


def cell_name(setting: Setting) -> str:
    """File name of a cell, e.g. ``1300.5.json``."""
    return f"{setting_label(setting)}.json"


def fingerprint(info: BoardInfo, workload: Workload, setting: Setting, protocol: SweepProtocol) -> str:
    """SHA-256 of everything that decides what a cell says.

    The default way of measuring adds nothing, so that cells from before there was another one stay valid.
    """
    default = {"meter": "steady", "baseline": "verified"}
    return sha256_of(
        {
            **{name: getattr(protocol, name) for name in default if getattr(protocol, name) != default[name]},
            "schema_version": SCHEMA_VERSION,
            "protocol_version": protocol.protocol_version,
            "board": [info.id, info.digest],
            "workload": dataclasses.asdict(workload),
            "steps": protocol.steps,
            "repeats": protocol.repeats,
            "seed": protocol.seed,
            "setting": setting,
        }
    )


def workload_features(workload: Workload, part: str) -> dict[str, FeatureValue]:
    """The columns of features.csv that describe a workload."""
    return {
        "model": workload.model,
        "task": workload.task,
        "family": workload.family,
        "layers": workload.layers,
        "hidden": workload.hidden,
        "params_m": workload.params_m,
        "seq_len": workload.seq_len,
        "batch_size": workload.batch_size,
        "precision": workload.precision,
        "part": part or None,
    }


def write_cell(path: Path, cell: Cell) -> None:
    """Write a cell atomically.

    Raises:
        BoardError: disk full, read-only or no permission; a cell that was there stays.
    """

    def plain(measurement: Measurement) -> dict[str, Any]:
        return {name: getattr(measurement, name) for name in _FIELDS}

    document = {
        "schema_version": SCHEMA_VERSION,
        **{key: getattr(cell, key) for key in _TEXT_KEYS},
        "setting": cell.setting,
        "features": dict(cell.features),
        "repeats": [plain(m) for m in cell.repeats],
        "noise_free": None if cell.noise_free is None else plain(cell.noise_free),
        **({"certificates": [dict(c) for c in cell.certificates]} if cell.certificates else {}),
    }
    if cell.board_digest:
        document |= {"board_digest": cell.board_digest, "table_mhz": list(cell.table_mhz)}
    write_json(path, document)


def parse_cell(text: str | bytes) -> Cell:
    """Read a cell.

    Raises:
        ValueError: no JSON, another schema version, or not complete; the message says which.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"its schema version is {document.get('schema_version')!r}")
    for key in _TEXT_KEYS:
        if not isinstance(document.get(key), str):
            raise ValueError(f"'{key}' is missing")
    setting = document.get("setting")
    if setting != MAXN and not _positive(setting):
        raise ValueError(f"its setting is {setting!r}")
    repeats, features = document.get("repeats"), document.get("features")
    if not isinstance(repeats, list) or not repeats or not isinstance(features, dict):
        raise ValueError("'repeats' or 'features' is missing")
    clean: Setting = MAXN if setting == MAXN else float(setting)  # type: ignore[arg-type]  # checked above
    noise_free = document.get("noise_free")
    certificates = document.get("certificates", [])
    if not isinstance(certificates, list) or not all(isinstance(c, dict) for c in certificates):
        raise ValueError("'certificates' is not a list of objects")
    if certificates and len(certificates) != len(repeats):
        raise ValueError(f"there are {len(certificates)} certificates for {len(repeats)} repeats")
    digest, table = document.get("board_digest", ""), document.get("table_mhz", [])
    if not isinstance(digest, str) or not isinstance(table, list) or not all(map(_positive, table)):
        raise ValueError("'board_digest' or 'table_mhz' is not what it should be")
    if bool(digest) != bool(table):
        raise ValueError("of 'board_digest' and 'table_mhz' one is missing")
    return Cell(
        **{key: document[key] for key in _TEXT_KEYS},
        setting=clean,
        features=features,
        repeats=tuple(_measurement(entry, clean) for entry in repeats),
        noise_free=None if noise_free is None else _measurement(noise_free, clean),
        certificates=tuple(certificates),
        board_digest=digest,
        table_mhz=tuple(float(mhz) for mhz in table),
    )


def _positive(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def _measurement(entry: Any, setting: Setting) -> Measurement:
    if not isinstance(entry, dict) or any(name not in entry for name in _NEEDED):
        raise ValueError("a repeat is not complete")
    for name, value in entry.items():
        if name not in _FIELDS:
            raise ValueError(f"a repeat has the unknown entry '{name}'")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not number:
            raise ValueError(f"'{name}' of a repeat is {value!r}")
    if not _positive(entry["energy_j"]) or (entry["time_s"] is not None and not _positive(entry["time_s"])):
        raise ValueError("the energy or the time of a repeat is not above 0")
    return Measurement(setting=setting, **entry)


def load_cells(folder: Path, expected: Mapping[Setting, str]) -> list[Cell]:
    """The cells of one workload, in the order of `expected`.

    Args:
        folder: ``data/profiles/<workload>``.
        expected: setting -> fingerprint.

    Raises:
        InputError: a cell is missing, damaged, of another protocol, or a file is there that nobody expects.
    """
    with clear_os_errors(folder, "read"):
        present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    again = f"Run `dvc repro`, or `python -m wattune.stages.profile {folder.name}` for this workload alone."
    names = {cell_name(setting): setting for setting in expected}
    unexpected = sorted(present.difference(names))
    if unexpected:
        raise InputError(
            f"{folder / unexpected[0]} is not a cell of this sweep"
            f"{f' (nor are {len(unexpected) - 1} more there)' if len(unexpected) > 1 else ''}.",
            f"Only {', '.join(names)} were expected in that folder.",
            f"Move it elsewhere and run `dvc repro`; {again[0].lower()}{again[1:]}",
        )
    cells = []
    for name, setting in names.items():
        if name not in present:
            raise InputError(
                f"Workload '{folder.name}' has no measurement at {setting_label(setting)}: "
                f"{folder / name} is missing.",
                "One cell per setting of the sweep was expected.",
                again,
            )
        with clear_os_errors(folder / name, "read"):
            data = (folder / name).read_bytes()
        try:
            cell = parse_cell(data)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{folder / name} is damaged: {error}.", "A complete cell was expected.", again
            ) from error
        if cell.fingerprint != expected[setting]:
            raise InputError(
                f"{folder / name} was measured under another protocol than params.yaml asks for.",
                "Cells of one protocol were expected.",
                again,
            )
        cells.append(cell)
    return cells
