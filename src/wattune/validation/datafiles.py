"""Sweeps measured by others, read from a folder that we may not hand on (``WATTUNE_DATA``); absent for most.

The files are tables with one header line, some compressed. What is needed of a row must be there and be a number; a row without
its time or power, or with an implausible one, is left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattune.core.errors import InputError
from wattune.core.numbers import decimal_number
from wattune.core.workload import Workload
from wattune.io import file_sha256, read_data
from wattune.validation import jobs
from wattune.validation.published import MODULE_RAILS, ORIN
from wattune.validation.source import Source

log = logging.getLogger(__name__)

ABSENT = "absent"
XAVIER = "jetson-agx-xavier"
XAVIER_FILE = "xavier_agx_training_grid.csv.gz"
INFERENCE_FILE = "orin_agx_inference_bert_yolo.csv.gz"
LLAMA_FILE = "orin_agx_llama8b_modes.csv"

XAVIER_RAILS = ("GPU", "CPU", "VDDRQ", "SYS5V")
INFERENCE_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VDDQ_VDD2_1V8AO")
FAMILIES = {
    "xavier_training_time": XAVIER_FILE,
    "xavier_training_power": XAVIER_FILE,
    "orin_bert_inference_time": INFERENCE_FILE,
    "orin_bert_inference_power": INFERENCE_FILE,
    "orin_yolo_inference_time": INFERENCE_FILE,
    "orin_yolo_inference_power": INFERENCE_FILE,
    "orin_llama8b_power": LLAMA_FILE,
}
"""Family of sources -> the file it is read from."""

DIGESTS = {
    XAVIER_FILE: "0aafc597d15357be780fed1114958e8dce81ca3b7e827a15534ee3419e0d4d1b",
    INFERENCE_FILE: "ecdd7b4352c29a79dba2dd006cdb2effcaba2ece041d1490bf75dbd78924ff12",
    LLAMA_FILE: "24c9fcefb48c4477a9b04b2e2f8d9f35df24e909a751b54926d00fe653a202a0",
}
"""SHA-256 of the collections that the figures of docs/validation.md were made with."""

_BACKWARDS = 1.05
"""A clock that is this much faster than the next higher one was not set when it was measured."""

_LLAMA_CLOCK_MHZ = {"maxn": 1300.5, "30w": 612.0}
_PROMPT_TOKENS = 15_718


@dataclass(frozen=True, slots=True)
class _Row:
    workload: str
    model: str
    setting: str
    gpu_mhz: float | None
    cpu_mhz: float | None
    emc_mhz: float | None
    time_s: float | None
    power_w: float | None


_TEXTS = ("workload", "model", "setting")
_NUMBERS = ("gpu_mhz", "cpu_mhz", "emc_mhz", "time_s", "power_w")


def data_sources(folder: Path | None) -> dict[str, list[Source] | str]:
    """Sources of every family, or the text ``absent`` where there is no folder or the family's file is not in it.

    Args:
        folder: where the files lie, from ``WATTUNE_DATA``; None where that is not set.

    Raises:
        InputError: a file that is there is damaged: its name and line are in the message.
    """
    found: dict[str, list[Source] | str] = dict.fromkeys(FAMILIES, ABSENT)
    if folder is None:
        return found
    for name, read in _READERS.items():
        path = Path(folder) / name
        if path.exists():
            if file_sha256(path) != DIGESTS[name]:
                log.warning(
                    "%s is not the collection that docs/validation.md was made with: other figures are to be expected.",
                    path,
                )
            found.update(read(_rows(path), path))
    return found


def _rows(path: Path) -> list[_Row]:
    data = read_data(path, "The data file")
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}, line 1, could not be read: it is not a complete compressed text file."
            if path.suffix == ".gz"
            else f"{path}, line 1, could not be read: it is not UTF-8 text.",
            hint="Fetch the file again.",
        ) from error
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        if missing := [name for name in (*_TEXTS, *_NUMBERS) if name not in (reader.fieldnames or ())]:
            raise InputError(
                f"{path}, line 1, lacks the column {', '.join(missing)}.", hint="Fetch the file again."
            )
        return [_row(record, path, reader.line_num) for record in reader]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}, is not a row of a table ({error}).",
            hint="Fetch the file again.",
        ) from error


def _row(record: dict[str, str | None], path: Path, line: int) -> _Row:
    if None in record or None in record.values():
        raise InputError(f"{path}, line {line}, has another number of columns than the header.")
    gpu_mhz, cpu_mhz, emc_mhz, time_s, power_w = (
        _number(record[name] or "", name, path, line) for name in _NUMBERS
    )
    workload, model, setting = (record[name] or "" for name in _TEXTS)
    return _Row(workload, model, setting, gpu_mhz, cpu_mhz, emc_mhz, time_s, power_w)


def _number(text: str, name: str, path: Path, line: int) -> float | None:
    if not text.strip():
        return None
    try:
        value = decimal_number(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{path}, line {line}: {name} is '{text}'.",
            "A number above 0 was expected.",
            "Fetch the file again.",
        )
    return value


def _curve(rows: Iterable[_Row], what: str, path: Path) -> tuple[list[_Row], str]:
    """The usable rows of a sweep by ascending clock, and a sentence on those left out (empty where none was)."""
    ordered = sorted((row for row in rows if row.gpu_mhz), key=lambda row: row.gpu_mhz or 0.0)
    out: list[str] = []
    kept: list[_Row] = []
    for row in reversed(ordered):
        higher = kept[-1].time_s if kept else None
        if not row.time_s or not row.power_w or row.time_s < 0 or row.power_w < 0:
            out.append(f"{row.gpu_mhz:g} MHz (no time or power)")
        elif higher and row.time_s * _BACKWARDS < higher:
            out.append(f"{row.gpu_mhz:g} MHz (faster than the clock above it)")
        else:
            kept.append(row)
    kept.reverse()
    clocks = [row.gpu_mhz for row in kept]
    if len(kept) < 2 or len(set(clocks)) != len(clocks):
        raise InputError(
            f"{path} has no sweep of {what}: {len(kept)} usable rows, {len(set(clocks))} clocks."
        )
    return kept, f"rows left out: {len(out)}, {', '.join(out)}" if out else ""


def _mhz(rows: Sequence[_Row]) -> tuple[float, ...]:
    return tuple(row.gpu_mhz or 0.0 for row in rows)


def _pair(base: Source, rows: Sequence[_Row], rails: tuple[str, ...], power_used_for: str) -> list[Source]:
    """A sweep's time and its power, in this order."""
    return [
        replace(base, measured=tuple(row.time_s or 0.0 for row in rows)),
        replace(
            base,
            name=base.name.replace("_time_", "_power_"),
            used_for=power_used_for,
            quantity="power",
            rails=rails,
            measured=tuple(row.power_w or 0.0 for row in rows),
        ),
    ]


# --- one reader per file
# --------------------------------------------------------------------------------------------------------

_TORCH = "counted with a current PyTorch, Adam without multi-tensor operations; the versions used are not published"
_XAVIER_JOBS: tuple[tuple[str, str, Callable[[], Workload], tuple[str, ...]], ...] = (
    ("vit", "ViT-B_16", jobs.vit_cifar10, ()),
    ("resnet50", "resnet50", jobs.resnet50_tinyimagenet, ()),
    (
        "bilstm",
        "LSTM emb100 hid256 x2 bidirectional",
        jobs.bilstm_imdb,
        (
            f"texts padded to {jobs.LSTM_TOKENS} tokens (to the longest of the first 160, which is not published)",
            f"a kernel issued by cuDNN costs {jobs.CUDNN_LAUNCH_SHARE:g} of an eager launch",
        ),
    ),
)


def _xavier(rows: list[_Row], path: Path) -> dict[str, list[Source]]:
    """Training steps over the GPU's clocks, CPU and memory at their maximum. Time and power calibrate the Xavier."""
    cpu = max((row.cpu_mhz or 0.0 for row in rows), default=0.0)
    emc = max((row.emc_mhz or 0.0 for row in rows), default=0.0)
    top = [row for row in rows if row.cpu_mhz == cpu and row.emc_mhz == emc]
    times: list[Source] = []
    powers: list[Source] = []
    for name, model, build, assumed in _XAVIER_JOBS:
        kept, left_out = _curve((row for row in top if row.model == model), model, path)
        base = Source(
            name=f"xavier_time_{name}",
            board=XAVIER,
            used_for="calibration",
            quantity="time",
            rails=(),
            workload=build(),
            mhz=_mhz(kept),
            measured=(),
            steps=1.0,
            citation=f"github hongpeng-guo/BoFL@c89944d, AGX ({model}; mean of ten minibatches per clock)",
            shape_sd=0.01,
            level_sd=0.15,
            assumed=(*assumed, _TORCH, *filter(None, (left_out,))),
        )
        time, power = _pair(base, kept, XAVIER_RAILS, "calibration")
        power = replace(power, shape_sd=0.02, level_sd=0.05)
        times.append(time)
        powers.append(power)
    return {"xavier_training_time": times, "xavier_training_power": powers}


_LOGGER = "published energies corrected for the logger, which averaged the GPU rail into the two others (2 x field - GPU)"
_ONE_RUN = "the time includes loading the model, once per clock"


def _inference(rows: list[_Row], path: Path) -> dict[str, list[Source]]:
    """Inference over the GPU's clocks at the maximum CPU clock. Validation only."""
    cpu = max((row.cpu_mhz or 0.0 for row in rows), default=0.0)
    families: dict[str, list[Source]] = {
        name: [] for name, file in FAMILIES.items() if file == INFERENCE_FILE
    }
    runs = [
        (
            "bert",
            share,
            f"-esw0.{share}-",
            "",
            jobs.bert_features(),
            (
                f"10000 lines of about {jobs.BERT_TOKENS} tokens each, fp32",
                f"products computed on tiles of {jobs.BERT_TILE_TOKENS} rows: of 32, 64 and 128 chosen with this curve in view",
            ),
        )
        for share in (1, 5, 9)
    ] + [
        (
            "yolo",
            width,
            "yolov8n",
            f"width {width}",
            jobs.yolov8n_detection(width),
            ("frames of 16:9, fp32; decoding, preparation and overlap suppression are not in the workload",),
        )
        for width in (480, 640, 960)
    ]
    for kind, variant, model, workload, job, assumed in runs:
        chosen = (r for r in rows if r.cpu_mhz == cpu and model in r.model and r.workload.endswith(workload))
        kept, left_out = _curve(chosen, f"{kind} {variant}", path)
        base = Source(
            name=f"orin_{kind}_time_{variant}",
            board=ORIN,
            used_for="validation",
            quantity="time",
            rails=(),
            workload=job,
            mhz=_mhz(kept),
            measured=(),
            steps=float(job.steps_per_epoch),
            citation="github lijiaxi2018/Distributed-Learning@2c63c6f, assets/result (single runs)",
            assumed=(*assumed, _ONE_RUN, _LOGGER, *filter(None, (left_out,))),
        )
        time, power = _pair(base, kept, INFERENCE_RAILS, "validation")
        families[f"orin_{kind}_inference_time"].append(time)
        families[f"orin_{kind}_inference_power"].append(power)
    return families


_LLAMA_RUNS = (
    # mode, phase, variant, quantisation, tokens behind the one that is made (half the new ones included)
    ("maxn", "decode", "iq4xs", "iq4xs", 128),
    ("maxn", "decode", "q4km", "q4km", 128),
    ("maxn", "decode", "lciq4xs", "iq4xs", _PROMPT_TOKENS),
    ("maxn", "decode", "lcq4km", "q4km", _PROMPT_TOKENS),
    ("maxn", "prefill", "lciq4xs", "iq4xs", _PROMPT_TOKENS),
    ("maxn", "prefill", "lcq4km", "q4km", _PROMPT_TOKENS),
    ("30w", "decode", "q4km", "q4km", 128),
    ("30w", "decode", "lcq4km", "q4km", _PROMPT_TOKENS),
    ("30w", "prefill", "lcq4km", "q4km", _PROMPT_TOKENS),
)


def _llama(rows: list[_Row], path: Path) -> dict[str, list[Source]]:
    """Mean power of llama.cpp in two power modes: single points, so only their level says anything. Validation only."""
    sources = []
    for mode, phase, variant, quantisation, context in _LLAMA_RUNS:
        wanted = f"llama.cpp {phase}, variant {variant} run "
        powers = [
            row.power_w
            for row in rows
            if row.power_w and row.workload.startswith(wanted) and mode in row.setting.lower()
        ]
        if not powers:
            raise InputError(f"{path} has no row of '{wanted.strip()}' in the mode {mode}.")
        build = jobs.llama8b_decode if phase == "decode" else jobs.llama8b_prefill
        sources.append(
            Source(
                name=f"orin_llama8b_{phase}_{variant}_{mode}",
                board=ORIN,
                used_for="validation",
                quantity="power",
                rails=MODULE_RAILS,
                workload=build(quantisation, context),
                mhz=(_LLAMA_CLOCK_MHZ[mode],),
                power_mode="MODE_30W" if mode == "30w" else "",
                measured=(sum(powers) / len(powers),),
                steps=None,
                citation=f"github jbecirovski/jetson-llm-maxperf@c19500d, campaigns/2026-08-12-energy ({len(powers)} runs)",
                assumed=(
                    f"power mode {mode.upper()}: the GPU at the mode's highest clock",
                    "16-bit products; the kernels of llama.cpp work on 8-bit integers",
                    "kernels issued one by one; llama.cpp replays them as a CUDA graph",
                ),
            )
        )
    return {"orin_llama8b_power": sources}


_READERS: dict[str, Callable[[list[_Row], Path], dict[str, list[Source]]]] = {
    XAVIER_FILE: _xavier,
    INFERENCE_FILE: _inference,
    LLAMA_FILE: _llama,
}
