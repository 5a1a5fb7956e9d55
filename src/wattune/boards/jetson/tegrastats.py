"""Logs of tegrastats: what a line says, and when.

The text is no stable format: fields come and go with the JetPack, the board and whether root asked. So every field is
optional, names are matched as whole tokens, and what is not understood is kept aside. Power is printed as
``now/average since the start``; only the first is a reading, the average is never used. Temperatures of -256 mean that
a block is off: they are unknown, not cold.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from statistics import median

from wattune.core.errors import InputError

HOLE_PERIODS = 2.5
"""An interval longer than this many periods is a gap."""

FULL_SECOND = 0.85
"""A second whose lines fill less than this of it is one in which lines are missing."""

DAY_S = 86400.0

_START, _END = r"(?<!\S)", r"(?!\S)"
_NUMBER = r"-?[0-9]{1,4}(?:\.[0-9]{1,6})?"
_STAMP = re.compile(r"^([0-9]{2}-[0-9]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2})" + _END)
_MEMORY = re.compile(
    _START + r"(RAM|SWAP|IRAM) ([0-9]{1,9})/([0-9]{1,9})([kMG])B ?(?:\((?:lfb|cached) [^()]*\))?" + _END
)
_CPU = re.compile(_START + r"CPU \[([^\[\]]*)\]" + _END)
_CORE = re.compile(r"([0-9]{1,3})%(?:@([0-9]{1,5}))?")
_GPU = re.compile(
    _START
    + r"GR3D(?:_FREQ)? (?:off|(?=[0-9@])(?:([0-9]{1,3}) ?%)? ?(?:@ ?(?:\[([0-9, ]*)\]|([0-9]{1,5})))?)"
    + _END
)
_MEMORY_CLOCK = re.compile(_START + r"EMC(?:_FREQ)? (?:([0-9]{1,3})%)?(?:@([0-9]{1,5}))?" + _END)
_ENGINE = re.compile(
    rf"{_START}(?:([A-Z][A-Z0-9_]*) (off|[0-9]{{1,3}}%(?:@[0-9]{{1,5}})?|@?[0-9]{{1,5}})"
    rf"|(MTS) (fg [0-9]{{1,3}}% bg [0-9]{{1,3}}%)){_END}"
)
_TEMPERATURE = re.compile(
    _START + rf"([A-Za-z][A-Za-z0-9_-]*)@({_NUMBER})C(?:/{_NUMBER} ?C)?" + _END,
)
_RAIL = re.compile(
    _START + r"([A-Z][A-Z0-9_]*) (-?[0-9]{1,7})(mW)?/-?[0-9]{1,7}(?:mW)?(?:/-?[0-9]{1,7}(?:mW)?)?" + _END
)
_RAIL_NAME = re.compile(r"V(?:DD|IN)[A-Z0-9_]*|POM_[A-Z0-9_]+|CVB_[A-Z0-9_]+|SYS5V|GPU|CPU|SOC|CV|NC")
_NO_RAIL = frozenset({"RAM", "SWAP", "IRAM", "EMC", "EMC_FREQ", "GR3D", "GR3D_FREQ"})
_CONSTANT_ZONES = frozenset({"pmic"})
_REMOVED = " | "


@dataclass(frozen=True, slots=True)
class Core:
    """A CPU core that is online: load in percent, clock in MHz (None where not printed)."""

    util_pct: float
    mhz: float | None


@dataclass(slots=True)
class Sample:
    """What one line says; what it does not say is None or absent.

    Attributes:
        stamp_s: local time of the line, seconds since 1970 as if it were UTC; whole seconds.
        ram_mb: memory in use and in all, MB; `swap_mb` likewise.
        cores: CPU cores in order, None for one that is offline.
        emc_util_pct: load of the memory controller, percent; `emc_mhz` its clock.
        gpu_util_pct: GPU load, percent.
        gpu_mhz: clock of each GPC, MHz, None where it stands still; None as a whole where nothing is printed or the GPU is off.
        gpu_gated: the GPU is powered off (load 0 at 0 MHz).
        gpu_stands: the clock printed is 0, whatever the load is.
        engines: other blocks as printed, e.g. ``{"VIC": "36%@115", "NVDEC": "off"}``.
        temps_c: zone in lower case -> degrees Celsius; None for a sensor that is off.
        rails_w: supply -> watts now (negative at idle on some boards); unconnected channels (``NC``) are left out.
        other: tokens that were not understood.
        whole: the line begins as tegrastats begins one, so its first field is not cut.
        gpu_last: nothing follows the GPU's field, so its last number may be cut.
    """

    stamp_s: float | None = None
    ram_mb: tuple[float, float] | None = None
    swap_mb: tuple[float, float] | None = None
    cores: tuple[Core | None, ...] | None = None
    emc_util_pct: float | None = None
    emc_mhz: float | None = None
    gpu_util_pct: float | None = None
    gpu_mhz: tuple[float | None, ...] | None = None
    gpu_gated: bool = False
    gpu_stands: bool = False
    engines: dict[str, str] = field(default_factory=dict)
    temps_c: dict[str, float | None] = field(default_factory=dict)
    rails_w: dict[str, float] = field(default_factory=dict)
    other: tuple[str, ...] = ()
    whole: bool = False
    gpu_last: bool = False

    @property
    def cpu_online(self) -> int | None:
        """How many cores are online; None where the line does not say."""
        return None if self.cores is None else sum(core is not None for core in self.cores)

    @property
    def says_something(self) -> bool:
        """Whether there is a reading in it, beyond the memory in use."""
        has_gpu = self.gpu_util_pct is not None or self.gpu_mhz is not None or self.gpu_gated
        has_emc = self.emc_util_pct is not None or self.emc_mhz is not None
        return bool(has_gpu or has_emc or self.cores is not None or self.rails_w or self.temps_c)


def parse_line(line: str) -> Sample:
    """Read one line, or a piece of one; never fails, since every field is optional."""
    sample = Sample()
    text = " ".join(line.replace("\ufeff", "").split())
    stamp = _STAMP.match(text)
    if stamp:
        sample.stamp_s = _seconds(stamp[1])
        text = _REMOVED + text[stamp.end() :]
    text = _MEMORY.sub(lambda m: _memory(m, sample), text)
    sample.whole = sample.ram_mb is not None
    text = _CPU.sub(lambda m: _cores(m, sample), text)
    sample.gpu_last = bool((gpu := _GPU.search(text)) and not text[gpu.end() :].strip())
    text = _GPU.sub(lambda m: _gpu(m, sample), text)
    text = _MEMORY_CLOCK.sub(lambda m: _emc(m, sample), text)
    text = _TEMPERATURE.sub(lambda m: _temperature(m, sample), text)
    sure = sample.whole or sample.says_something
    text = _RAIL.sub(lambda m: _rail(m, sample, sure=sure), text)
    text = _ENGINE.sub(lambda m: _engine(m, sample), text)
    sample.other = tuple(token for token in text.split() if token != _REMOVED.strip())
    return sample


def _seconds(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%m-%d-%Y %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _percent(text: str | None) -> float | None:
    value = None if text is None else float(text)
    return None if value is None or value > 100 else value


def _memory(match: re.Match[str], sample: Sample) -> str:
    scale = {"k": 1 / 1024, "M": 1.0, "G": 1024.0}[match[4]]
    pair = (float(match[2]) * scale, float(match[3]) * scale)
    if match[1] == "RAM" and sample.ram_mb is None:
        sample.ram_mb = pair
    elif match[1] == "SWAP" and sample.swap_mb is None:
        sample.swap_mb = pair
    return _REMOVED


def _cores(match: re.Match[str], sample: Sample) -> str:
    if sample.cores is not None:
        return match[0]
    cores: list[Core | None] = []
    for entry in match[1].split(",") if match[1].strip() else []:
        known = _CORE.fullmatch(entry.strip())
        util = None if known is None else _percent(known[1])
        if known is None or util is None:
            cores.append(None)
        else:
            cores.append(Core(util, float(known[2]) if known[2] else None))
    sample.cores = tuple(cores)
    return _REMOVED


def _gpu(match: re.Match[str], sample: Sample) -> str:
    if sample.gpu_util_pct is not None or sample.gpu_mhz is not None or sample.gpu_gated:
        return match[0]
    sample.gpu_util_pct = _percent(match[1])
    printed = match[3] if match[2] is None else match[2]
    clocks = [float(part) for part in (printed or "").replace(" ", ",").split(",") if part]
    sample.gpu_stands = standing = bool(clocks) and not any(clocks)
    sample.gpu_gated = match[0].endswith("off") or (standing and not sample.gpu_util_pct)
    if clocks and not standing:
        sample.gpu_mhz = tuple(mhz or None for mhz in clocks)
    return _REMOVED


def _emc(match: re.Match[str], sample: Sample) -> str:
    if sample.emc_util_pct is None and sample.emc_mhz is None:
        sample.emc_util_pct = _percent(match[1])
        sample.emc_mhz = float(match[2]) if match[2] and int(match[2]) else None
    return _REMOVED


def _engine(match: re.Match[str], sample: Sample) -> str:
    name, value = match.group(1, 2) if match[1] else match.group(3, 4)
    if name in _NO_RAIL:
        return match[0]
    sample.engines.setdefault(name, value)
    return _REMOVED


def _temperature(match: re.Match[str], sample: Sample) -> str:
    zone, celsius = match[1].lower(), float(match[2])
    if zone not in _CONSTANT_ZONES:
        sample.temps_c.setdefault(zone, celsius if -60.0 < celsius < 200.0 else None)
    return _REMOVED


def _rail(match: re.Match[str], sample: Sample, *, sure: bool) -> str:
    name = match[1]
    if name in _NO_RAIL or not (match[3] or sure or _RAIL_NAME.fullmatch(name)):
        return match[0]
    if name == "NC":
        return _REMOVED
    if name in sample.rails_w:
        return match[0]
    sample.rails_w[name] = int(match[2]) / 1000.0
    return _REMOVED


# --- whole logs -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Log:
    """A log, sample by sample.

    Attributes:
        samples: the lines that say something, in order.
        t_s: their times in seconds from the first, strictly increasing; None where neither the lines nor the reader know.
        period_s: usual time between samples; None where unknown.
        n_lines: lines that are not blank; `skipped_lines` those of them that could not be used, `repeated_lines` those that
            stood there again, with the same time and all else, and were left out.
        clock_jumps: how often the clock of the board was set, or changed to or from summer time; a jump counts as one period.
        warnings: sentences for people.
    """

    samples: list[Sample]
    t_s: tuple[float, ...] | None
    period_s: float | None
    n_lines: int
    skipped_lines: int
    clock_jumps: int = 0
    warnings: list[str] = field(default_factory=list)
    repeated_lines: int = 0

    @property
    def gaps(self) -> tuple[tuple[float, float], ...] | None:
        """Where samples are missing: from, to, in seconds from the first; None where times are unknown."""
        if self.t_s is None:
            return None
        return find_gaps(self.t_s, self.period_s)


def find_gaps(t_s: Sequence[float], period_s: float | None) -> tuple[tuple[float, float], ...]:
    """Intervals longer than 2.5 periods."""
    if period_s is None:
        return ()
    limit = HOLE_PERIODS * period_s * (1 + 1e-9)
    return tuple((a, b) for a, b in itertools.pairwise(t_s) if b - a > limit)


def parse_log(data: bytes, *, interval_s: float | None = None, name: str = "The log") -> Log:
    """Read a log.

    Times are those printed in front of the lines (whole seconds; lines of the same second are spread evenly over it), else
    the line's number times the interval the reader gives, else unknown.

    Args:
        data: the file's bytes.
        interval_s: time between lines, seconds, where the reader knows it.
        name: what to call the log in messages.

    Raises:
        InputError: it is empty, or more than half of its lines say nothing.
    """
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = data.decode(encoding, "replace").replace("\0", " ").replace("\ufeff", "")
    printed = [line for line in re.split(r"\r?\n|\r", text) if line.strip()]
    lines = [record for line in printed for record in _records(line)]
    if not lines:
        raise InputError(
            f"{name} is empty.",
            "Lines that tegrastats printed were expected.",
            "Record some with `tegrastats --interval 1000 --logfile LOG`.",
        )
    parsed = [parse_line(line) for line in lines]
    cut = not text.endswith(("\n", "\r")) and not _looks_complete(lines, parsed)
    unread = _unread(parsed[:-1] if cut else parsed)
    _set_aside_cut_fields(parsed)
    samples: list[Sample] = []
    ticks: list[int] = []
    tick = 0
    repeats = _repeats(lines, parsed)
    for index, sample in enumerate(parsed):
        if index in repeats:
            continue
        used = sample.says_something and not (cut and index == len(parsed) - 1)
        if used:
            samples.append(sample)
            ticks.append(tick)
        # A line that was broken took its interval too; one of another program did not.
        tick += used or sample.whole or sample.stamp_s is not None
    skipped = len(lines) - len(samples) - len(repeats)
    if skipped > len(lines) / 2:
        raise InputError(
            f"{name} is no log of tegrastats: {skipped} of {len(lines)} lines say nothing that can be read.",
            "Lines such as 'RAM 4333/62801MB ... GR3D_FREQ 14%@[407,407] ... VDD_GPU_SOC 3150mW/2971mW' were expected.",
            "Record some with `tegrastats --interval 1000 --logfile LOG`.",
        )
    log = Log(samples, None, interval_s, len(lines), skipped, repeated_lines=len(repeats))
    if repeats:
        log.warnings.append(
            f"{len(repeats)} lines stand there twice, with the same time and all else; they were left out the second time."
        )
    if skipped:
        log.warnings.append(
            f"{skipped} of {len(lines)} lines say nothing that can be read; they were skipped."
        )
    if joined := sum(len(_records(line)) > 1 for line in printed):
        log.warnings.append(f"{joined} lines hold more than one record; each was read as a line of its own.")
    for name, n in unread.items():
        log.warnings.append(
            f"{name} has a value that could not be read in {n} of {len(lines)} lines; there it is unknown."
        )
    _set_times(log, ticks, interval_s)
    return log


_RECORD = re.compile(
    r"(?:[0-9]{2}-[0-9]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\s+)?RAM [0-9]{1,9}/[0-9]{1,9}[kMG]B"
)
_FIXED_NAMES = _NO_RAIL | {"CPU"}


def _records(line: str) -> list[str]:
    """A line, parted where a further record begins in it: a line end was lost, as where files are put together."""
    starts = [match.start() for match in _RECORD.finditer(line)][1:]
    return [line[a:b] for a, b in itertools.pairwise([0, *starts, len(line)])] if starts else [line]


def _unread(parsed: Sequence[Sample]) -> Counter[str]:
    """Fields whose name is known and whose value makes no sense -> in how many lines."""
    rails = {name for sample in parsed for name in sample.rails_w}
    zones = {name for sample in parsed for name in sample.temps_c}
    found: Counter[str] = Counter()
    for sample in parsed:
        names = set()
        for token, after in itertools.zip_longest(sample.other, sample.other[1:], fillvalue=""):
            is_known = token in rails or token in _FIXED_NAMES or _RAIL_NAME.fullmatch(token)
            if is_known and any(c.isdigit() for c in after):
                names.add(token)
            zone, at, _ = token.partition("@")
            if at and zone.lower() in zones:
                names.add(zone.lower())
        if sample.says_something:
            found.update(sorted(names))
    return found


FEW_REPEATS, FEW_REPEATS_SHARE = 3, 0.02
"""More lines that equal the one before are no repeats but a board on which nothing changes."""


def _repeats(lines: Sequence[str], parsed: Sequence[Sample]) -> set[int]:
    """Which lines stand there once more: whole parts of the log, and lines that are the one before (a logger that was killed)."""
    parts = _repeated_parts(lines, parsed)
    return parts | _doubles(lines, parsed, [i for i in range(len(lines)) if i not in parts])


SAME_LINE_PLACES = 16
"""At how many earlier places a part of a log is looked for."""


def _repeated_parts(lines: Sequence[str], parsed: Sequence[Sample]) -> set[int]:
    """Parts of a log that stand there again, as in a file that was put together twice.

    The time is one that has passed, and what follows is what stood there before, line by line. Where the clock was set back, other
    readings follow. On a board on which nothing changes they could be the same by chance: so a part whose lines differ in nothing
    but their times counts only where it is the whole log up to there.
    """
    places: dict[str, list[int]] = {}
    found: set[int] = set()
    peak = -math.inf
    second: tuple[float | None, int] = (None, 0)  # the present one, and where it begins
    i = 0
    while i < len(lines):
        stamp, text = parsed[i].stamp_s, lines[i].strip()
        if stamp is not None and stamp != second[0]:
            second = (stamp, i)
        start, length = 0, 0
        if stamp is not None and stamp < peak:
            known = itertools.islice(places.get(text, ()), SAME_LINE_PLACES)
            earlier = [place for place in known if place < second[1]]
            start, length = _longest_part(lines, i, earlier)
            bodies = {_STAMP.sub("", line.strip()) for line in lines[i : i + length]}
            if len(bodies) < 2 and not (start == 0 and length >= i):
                length = 0
        if length:
            found.update(range(i, i + length))
            i += length
            continue
        places.setdefault(text, []).append(i)
        peak = peak if stamp is None else max(peak, stamp)
        i += 1
    return found


def _longest_part(lines: Sequence[str], at: int, places: Sequence[int]) -> tuple[int, int]:
    """Of earlier places, the one from which most lines are those from `at` on; and how many they are."""
    best = (0, 0)
    for place in places:
        n = 0
        while at + n < len(lines) and lines[place + n].strip() == lines[at + n].strip():
            n += 1
        best = max(best, (place, n), key=lambda found: found[1])
    return best


def _doubles(lines: Sequence[str], parsed: Sequence[Sample], among: Sequence[int]) -> set[int]:
    """Which of some lines are the one before once more.

    They took no time, so they must not add energy. Lines of a fast log can be equal without being repeats: so they count only at
    the end of a log, or in one of a line a second or slower, and only where they are few.
    """
    doubles = [
        i
        for before, i in itertools.pairwise(among)
        if parsed[i].stamp_s is not None and lines[i].strip() == lines[before].strip()
    ]
    at_the_end = doubles == list(among[len(among) - len(doubles) :])
    if not doubles or len(doubles) > max(FEW_REPEATS, FEW_REPEATS_SHARE * len(among)):
        return set()
    left_out = set(doubles)
    others = [s for i in among if i not in left_out and (s := parsed[i].stamp_s) is not None]
    slow = len(others) <= 1.05 * len(set(others))
    return left_out if slow or at_the_end else set()


def _looks_complete(lines: Sequence[str], parsed: Sequence[Sample]) -> bool:
    """Whether a last line without its newline has all that the line before it has, down to the last unit."""
    earlier = [i for i in range(len(parsed) - 1) if parsed[i].says_something]
    if not earlier:
        return True
    last, before = parsed[-1], parsed[earlier[-1]]
    ends = [re.sub(r"[0-9]+", "0", lines[i].split()[-1]) for i in (earlier[-1], -1)]
    return (
        ends[0] == ends[1]
        and last.rails_w.keys() == before.rails_w.keys()
        and last.temps_c.keys() == before.temps_c.keys()
    )


def _set_aside_cut_fields(parsed: Sequence[Sample]) -> None:
    """Drop what a cut line seems to say: half a name at its start, half a number at its end."""
    whole = [sample for sample in parsed if sample.whole]
    if not whole:
        return
    rails = {name for sample in whole for name in sample.rails_w}
    zones = {name for sample in whole for name in sample.temps_c}
    gpu_is_last = sum(sample.gpu_last for sample in whole) * 2 > len(whole)
    for sample in parsed:
        if not sample.whole:
            strange = [name for name in sample.rails_w if name not in rails]
            strange_zones = [name for name in sample.temps_c if name not in zones]
            for name in strange:
                del sample.rails_w[name]
            for name in strange_zones:
                del sample.temps_c[name]
            sample.other += (*strange, *strange_zones)
        if sample.gpu_last and not gpu_is_last:
            sample.gpu_mhz = None


# --- times ----------------------------------------------------------------------------------------------------------


def _set_times(log: Log, ticks: Sequence[int], interval_s: float | None) -> None:
    stamps = [sample.stamp_s for sample in log.samples]
    known = [stamp for stamp in stamps if stamp is not None]
    if not known:
        if interval_s is not None:
            log.t_s = tuple((tick - ticks[0]) * interval_s for tick in ticks)
        return
    groups = _groups(known)
    period = _period(groups)
    if period is not None and interval_s is not None and not 0.5 < period / interval_s < 2.0:
        log.warnings.append(
            f"The lines are {period:.3g} s apart by their own clock, not {interval_s:.3g} s; their clock was used."
        )
    else:
        period = interval_s or period
    log.period_s = period
    starts, log.clock_jumps = _continuous(groups, period or 1.0)
    placed = iter(_spread(groups, starts, period))
    times = [None if stamp is None else next(placed) for stamp in stamps]
    if len(known) < len(stamps):
        log.warnings.append(
            f"{len(stamps) - len(known)} of {len(stamps)} lines have no time; theirs was put between the others'."
        )
    filled = _fill(times, period or 1.0)
    log.t_s = tuple(t - filled[0] for t in filled)
    if log.clock_jumps:
        log.warnings.append(
            f"The board's clock jumped {log.clock_jumps} times; each jump was taken for one period, and may hide a gap."
        )


def _groups(stamps: Iterable[float]) -> list[tuple[float, int]]:
    """Neighbouring lines of the same second: the second and how many."""
    groups: list[tuple[float, int]] = []
    for stamp in stamps:
        if groups and groups[-1][0] == stamp:
            groups[-1] = (stamp, groups[-1][1] + 1)
        else:
            groups.append((stamp, 1))
    return groups


def _period(groups: Sequence[tuple[float, int]]) -> float | None:
    """Usual time between lines, holes and jumps of the clock left out; None for a single line."""
    if len(groups) == 1:
        return 1.0 / groups[0][1] if groups[0][1] > 1 else None
    if len(groups) == 2 and max(n for _, n in groups) > 1:
        return 1.0 / max(n for _, n in groups)
    steps = [(b[0] - a[0], a[1]) for a, b in itertools.pairwise(groups) if b[0] > a[0]]
    if not steps:
        return 1.0
    inner = steps[1:] if len(steps) > 1 and groups[0][1] < median(n for _, n in steps) else steps
    usual_step, usual_n = median(step for step, _ in inner), median(n for _, n in inner)
    longest = 1.0 if usual_n > 1 else HOLE_PERIODS * usual_step
    kept = [(step, n) for step, n in inner if step <= longest and n >= 0.8 * usual_n - 1]
    return sum(step for step, _ in kept) / sum(n for _, n in kept) if kept else usual_step


def _continuous(groups: Sequence[tuple[float, int]], period_s: float) -> tuple[list[float], int]:
    """Starts of the seconds on a clock that nobody sets, and how often somebody did."""
    starts, jumps = [0.0], 0
    for (before, _), (now, _) in itertools.pairwise(groups):
        step = now - before
        if step < 0 or step > DAY_S or _is_summer_time(before, now, period_s):
            jumps += 1
            step = max(1.0, period_s)
        starts.append(starts[-1] + step)
    return starts, jumps


def _is_summer_time(before_s: float, now_s: float, period_s: float) -> bool:
    """Whether the clock was put forward by an hour: at night, from a full hour to the one after next."""
    late = 1.0 + HOLE_PERIODS * max(1.0, period_s)
    hour_before, hour_now = before_s // 3600, now_s // 3600
    night = int(hour_now % 24) <= 4
    return (
        night
        and hour_now - hour_before == 2
        and abs(now_s - before_s - 3600) <= late
        and now_s % 3600 <= late
    )


def _spread(
    groups: Sequence[tuple[float, int]], starts: Sequence[float], period_s: float | None
) -> Iterable[float]:
    """Times of all lines: those of one second evenly over it.

    A second that is not full has its lines a period apart: at its end where lines are missing before, else at its start, so
    that what is missing is one hole.
    """
    missing_before = True
    for index, ((_, n), start) in enumerate(zip(groups, starts, strict=True)):
        step, offset = 1.0 / n, 0.0
        if index and start - starts[index - 1] > 1.5:
            missing_before = True
        if period_s is not None and period_s < 0.5 and n * period_s < FULL_SECOND:
            step = min(step, period_s)
            if missing_before:
                offset = 1.0 - n * step
            missing_before = not missing_before
        else:
            missing_before = False
        for i in range(n):
            yield start + offset + i * step


def _fill(times: Sequence[float | None], period_s: float) -> list[float]:
    """Times for lines that have none: between their neighbours', or a period apart at the ends."""
    known = [i for i, t in enumerate(times) if t is not None]
    filled = [0.0 if t is None else t for t in times]
    for i in range(known[0] - 1, -1, -1):
        filled[i] = filled[i + 1] - period_s
    for i in range(known[-1] + 1, len(times)):
        filled[i] = filled[i - 1] + period_s
    for a, b in itertools.pairwise(known):
        for i in range(a + 1, b):
            filled[i] = filled[a] + (filled[b] - filled[a]) * (i - a) / (b - a)
    return filled


# --- rail sets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RailSets:
    """Which supplies of a log make up what; None with a reason where they do not.

    Attributes:
        gpu_cpu: labels whose sum is the rail set ``gpu_cpu``.
        module: labels whose sum is the module's power.
        gpu: labels of the GPU's own supply.
        reasons: name of the set -> why it is None.
    """

    gpu_cpu: tuple[str, ...] | None
    module: tuple[str, ...] | None
    gpu: tuple[str, ...] | None
    reasons: dict[str, str]


_TOTALS = (
    ("VDD_IN",),
    ("POM_5V_IN",),
    ("VIN",),
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # VDDQ_VDD2_1V8AO is inside VIN_SYS_5V0
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
)
_GPU_CPU = (("VDD_GPU_SOC", "VDD_CPU_CV"), ("GPU", "CPU"))
_GPU_RAILS = (("VDD_GPU_SOC",), ("VDD_GPU",), ("GPU",), ("POM_5V_GPU",))


def rail_sets(labels: Iterable[str]) -> RailSets:
    """Rail sets of a log by its labels, since a log does not say which board it is of."""
    there = set(labels)

    def first(sets: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
        return next((names for names in sets if there.issuperset(names)), None)

    found = {"gpu_cpu": first(_GPU_CPU), "module": first(_TOTALS), "gpu": first(_GPU_RAILS)}
    reasons: dict[str, str] = {}
    for name, names in found.items():
        if names is None:
            if not there:
                reasons[name] = "the log has no rails"
            elif name != "module" and "VDD_CPU_GPU_CV" in there:
                reasons[name] = "VDD_CPU_GPU_CV is a combined rail: CPU, GPU and CV together"
            else:
                reasons[name] = f"unknown for a board with the rails {', '.join(sorted(there))}"
    return RailSets(found["gpu_cpu"], found["module"], found["gpu"], reasons)


def count_other(samples: Iterable[Sample]) -> Counter[str]:
    """Tokens that were not understood, digits taken together, with how often they came."""
    return Counter(re.sub(r"[0-9]+", "0", token)[:40] for sample in samples for token in sample.other)
