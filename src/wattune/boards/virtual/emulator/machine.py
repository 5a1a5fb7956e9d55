"""The running board: the model stepped through real time, behind what drivers would show of it.

Physics, governor and constants are those of the virtual board; here they run as time passes: phases of training steps at the
present clock, a poll of the governor every 25 ms, the power monitors' filter, temperature, throttling, rail-gating.
"""

from __future__ import annotations

import errno
import math
import random
import threading
import time
import uuid
from collections.abc import Callable

from wattune.boards.virtual.board import draw_batches
from wattune.boards.virtual.constants import BoardFile, PowerMode
from wattune.boards.virtual.emulator.devfreq import KERNEL_OF_JETPACK, Devfreq
from wattune.boards.virtual.model import (
    PhaseRun,
    idle_run,
    leakage_factor,
    rail_powers_w,
    run_step,
)
from wattune.boards.virtual.podgov import PodGov
from wattune.core.errors import InputError
from wattune.core.workload import Workload

CONVERSION_S = 0.84e-3
"""One cycle of an INA3221 over its three channels: 2 x 140 us each; `samples` of them make the filter's time constant."""

CURRENT_CODE_UV, BUS_CODE_MV = 40, 8
"""Resolution of an INA3221: 40 uV over the shunt, 8 mV of bus voltage."""

THROTTLE_STATES = 3
THROTTLE_EVERY_S = 1.0
THROTTLE_HYSTERESIS_C = 2.0
CRITICAL_ABOVE_TRIP_C = 5.5
STEPS_PER_SHUFFLE = 200

ZONES: dict[str, float] = {
    "gpu": 1.0, "cpu": 0.9, "soc0": 0.85, "soc1": 0.86, "soc2": 0.84, "tj": 1.0, "tboard": 0.4, "tdiode": 0.45,
}  # fmt: skip
"""Thermal zones as shares of the die's rise above ambient; only the GPU's own is modelled."""

EMC_LEVELS_MHZ = (2133, 3199)
EMC_STEP_MHZ = 1122.0
"""The memory clock follows the GPU's: above this clock it takes its highest level (public Orin sweeps: CPU-bound times drop there)."""

CPU_IDLE_MHZ = 729.6


class Machine:
    """A board that runs in real time.

    Args:
        file: the board.
        jetpack: ``5``, ``6`` or ``7.2``.
        workload: what runs; None is idle.
        clock: seconds, monotonic.
        power_mode: name of the mode at boot; the board's default where None.
        seed: fixes the batches and the run-to-run noise.

    Attributes:
        lock: held around every read and write of the tree.
        devfreq: the GPU's node.
        load_permille: busy share of the governor's last window.
        railgated: the GPU is powered off.
        railgate_enable: whether it may be; `power_control` ``on`` forbids it too.
        filter_samples: the power monitors' averaging.
        oc_counts: over-current events since boot.
        extra_heat_c: added to the die's temperature (a fault).
        true_energy_j: rail -> joules since start, before any filter or rounding.
        true_power_w: rail -> watts now.
        steps_done: training steps since start.
    """

    def __init__(
        self,
        file: BoardFile,
        *,
        jetpack: str,
        workload: Workload | None,
        clock: Callable[[], float] = time.monotonic,
        power_mode: str | None = None,
        seed: int = 0,
    ) -> None:
        self.lock = threading.RLock()
        self.file, self.jetpack = file, jetpack
        self.power_modes = dict(file.power_modes)
        mode = file.mode(power_mode)
        self.devfreq = Devfreq(
            file.clocks_hz,
            kernel=KERNEL_OF_JETPACK[jetpack],
            cap_hz=mode.gpu_max_hz,
            poll_ms=round(file.constants.podgov_poll_s * 1e3),
        )
        self.devfreq.on_update = self._on_bounds
        self._mhz = [hz / 1e6 for hz in file.clocks_hz]
        self._index_of = {hz: i for i, hz in enumerate(file.clocks_hz)}
        self._clock, self._seed = clock, seed
        self._started = self._t = clock()
        self.true_energy_j = dict.fromkeys((rail.label for rail in file.rails), 0.0)
        self.true_power_w = dict.fromkeys(self.true_energy_j, 0.0)
        self.steps_done, self._drawn = 0, 0
        self.railgate_enable, self.railgated, self.power_control = True, False, "auto"
        self.extra_heat_c = 0.0
        self._fixed_cap_hz: int | None = None
        self._workload: Workload | None = None
        self._on_demand = False
        self._queue: list[int] = []
        self._phase, self._phases, self._left = 0, 1, 1.0
        self._runs: dict[tuple[int, int], tuple[PhaseRun, ...]] = {}
        self._power_factor = self._time_factor = 1.0
        self._podgov = PodGov(len(self._mhz))
        self._rails = {rail.label: rail for rail in file.rails}
        self._filtered_w = dict.fromkeys(self._rails, 0.0)
        self._throttle, self._window_s, self._busy_s = 0, 0.0, 0.0
        self._next_poll = self._next_thermal = self._idle_since = self._booted = self._t
        self._mode, self._c = mode, file.constants
        self._die_c = file.constants.ambient_c
        self._leakage = leakage_factor(self._c, self._die_c)
        self._boot(mode)
        self.set_workload(workload)
        self._settle()

    # --- from outside

    @property
    def board(self) -> str:
        """Board id."""
        return self.file.board

    @property
    def rail_sets(self) -> dict[str, tuple[str, ...]]:
        """``gpu_cpu`` and ``module``: the rails they sum."""
        rails = self.file.module_rails
        return {
            "gpu_cpu": tuple(rail.label for rail in rails if rail.gpu_cpu),
            "module": tuple(rail.label for rail in rails),
        }

    @property
    def power_mode(self) -> str:
        """Name of the power mode in force."""
        return self._mode.name

    @property
    def workload_id(self) -> str | None:
        """What runs; None when idle."""
        return self._workload.id if self._workload is not None else None

    @property
    def uptime_s(self) -> float:
        """Seconds since the last boot."""
        return self._t - self._booted

    @property
    def cpus(self) -> int:
        """CPU cores online."""
        return self._mode.cpus

    @property
    def cpu_mhz(self) -> float:
        """CPU clock: the mode's highest while something runs."""
        return (
            self._mode.cpu_max_mhz
            if self._workload is not None
            else min(CPU_IDLE_MHZ, self._mode.cpu_max_mhz)
        )

    @property
    def emc_mhz(self) -> int:
        """Memory clock."""
        level = EMC_LEVELS_MHZ[self._mhz[self._index] > EMC_STEP_MHZ and not self.railgated]
        return int(min(level, self._mode.emc_max_mhz))

    @property
    def trips_mc(self) -> dict[str, tuple[int, int]]:
        """Zone -> (throttling trip, critical trip), thousandths of a degree."""
        trip = round(self._c.throttle_c * 1e3)
        return {
            zone: (trip, trip + round(CRITICAL_ABOVE_TRIP_C * 1e3))
            for zone in ZONES
            if not zone.startswith("td")
        }

    @property
    def thermal_cap_hz(self) -> int | None:
        """A cap of the GPU's clock by the thermal framework that a fault holds; None where there is none."""
        return self._fixed_cap_hz

    @thermal_cap_hz.setter
    def thermal_cap_hz(self, hz: int | None) -> None:
        self._fixed_cap_hz = hz
        self._apply_thermal_cap()

    @property
    def cooling_state(self) -> int:
        """State of the GPU's cooling device: 0 is not capped."""
        return max(self._throttle, 1 if self._fixed_cap_hz is not None else 0)

    def set_workload(self, workload: Workload | None, *, on_demand: bool = False) -> None:
        """Run something else from now on; None is idle.

        Args:
            workload: what.
            on_demand: only the steps that :meth:`ask_step` asks for, and idle in between.
        """
        with self.lock:
            self.advance()
            self._workload, self._queue, self._phase, self._left = workload, [], 0, 1.0
            self._on_demand = on_demand and workload is not None
            self._runs = {}
            rng = random.Random(f"{self._seed}|{workload.id if workload else 'idle'}|{self._drawn}")
            c = self._c
            self._power_factor = rng.lognormvariate(0.0, c.power_noise_rel) if c.power_noise_rel else 1.0
            self._time_factor = rng.lognormvariate(0.0, c.time_noise_rel) if c.time_noise_rel else 1.0

    def ask_step(self, length: float) -> None:
        """Ask for one more training step, after those asked for before.

        Args:
            length: padded tokens per example; the workload's length bin nearest to it is run.

        Raises:
            InputError: nothing runs on demand.
        """
        with self.lock:
            self.advance()
            if self._workload is None or not self._on_demand:
                raise InputError(
                    "No workload runs on demand.", "`train WORKLOAD` was expected before `step LENGTH`."
                )
            bins = self._workload.bins
            self._queue.insert(0, min(range(len(bins)), key=lambda i: abs(bins[i].tokens - length)))

    @property
    def _computes(self) -> bool:
        """Whether there is a step to run."""
        return self._workload is not None and (bool(self._queue) or not self._on_demand)

    def set_power_mode(self, name: str) -> None:
        """Switch the mode as nvpmodel does: bounds reset, caps and cores changed."""
        with self.lock:
            self.advance()
            self._enter(self.file.mode(name))
            self._on_bounds()

    def overcurrent(self, counter: str = "oc2") -> None:
        """An over-current event: the counter moves.

        Raises:
            KeyError: no such counter.
        """
        with self.lock:
            self.oc_counts[counter] += 1

    def reboot(self) -> None:
        """A new boot: another boot id, bounds and counters as after power-on. Energy spent is kept."""
        with self.lock:
            self.advance()
            self._boot(self.file.mode(self._mode.name))

    def rail(self, label: str) -> tuple[int, int]:
        """A rail as its power monitor codes it: bus millivolts and milliamperes, truncated to whole codes.

        Raises:
            KeyError: no such rail.
        """
        rail = self._rails[label]
        code_ma = CURRENT_CODE_UV * 1e3 / rail.shunt_uohm
        current_ma = self._filtered_w[label] / rail.bus_v * 1e3
        bus_mv = round(rail.bus_v * 1e3) // BUS_CODE_MV * BUS_CODE_MV
        return bus_mv, round(math.floor(current_ma / code_ma + 1e-9) * code_ma)

    def temperature_mc(self, zone: str) -> int:
        """A thermal zone, thousandths of a degree.

        Raises:
            OSError: EAGAIN where the block is powered off.
        """
        if zone not in ZONES or (zone == "gpu" and self.railgated):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        rise = self.temp_c - self._c.ambient_c
        return round((self._c.ambient_c + ZONES[zone] * rise) * 1e3)

    @property
    def temp_c(self) -> float:
        """Die temperature."""
        return self._die_c + self.extra_heat_c

    # --- time

    def advance(self) -> None:
        """Bring everything to the present."""
        with self.lock:
            now = self._clock()
            while self._t < now:
                self._slice(now)

    def _slice(self, now: float) -> None:
        """Go on to the next event: the phase's end, the governor's poll, the gating of the rail, or `now`."""
        room = min(now, self._next_poll) - self._t
        computes = self._computes
        if not computes:
            may_gate = self.railgate_enable and self.power_control == "auto"
            to_gating = self._idle_since + self._c.railgate_delay_s - self._t
            self.railgated = may_gate and (self.railgated or to_gating <= 0.0)
            if may_gate and not self.railgated:
                room = min(room, to_gating)
            room = max(room, 0.0)
            run = idle_run(self._c, self._mhz[self._index], gated=self.railgated)
        else:
            self.railgated = False
            run = self._present_phase()[self._index]
            need = self._left * run.time_s * self._time_factor
            if need <= room:
                room, self._left = need, 0.0
            else:
                self._left -= room / (run.time_s * self._time_factor)
        self._spend(run, room, computes=computes)
        if computes:
            self._idle_since = self._t
            if self._left <= 0.0:
                self._next_phase()
        if self._t >= self._next_poll - 1e-12:
            self._poll()

    def _present_phase(self) -> tuple[PhaseRun, ...]:
        """The present phase at every clock."""
        assert self._workload is not None
        if not self._queue:
            self._queue = draw_batches(
                self._workload, STEPS_PER_SHUFFLE, f"{self._seed}|emulator|{self._drawn}"
            )
            self._drawn += 1
        key = (self._queue[-1], self._phase)
        if key not in self._runs:
            cost, precision = self._workload.bins[key[0]].cost, self._workload.precision
            by_clock = [run_step(self._c, cost, precision, mhz) for mhz in self._mhz]
            self._phases = len(by_clock[0])
            for number, runs in enumerate(zip(*by_clock, strict=True)):
                self._runs[key[0], number] = runs
        return self._runs[key]

    def _next_phase(self) -> None:
        self._phase, self._left = self._phase + 1, 1.0
        if self._phase == self._phases:
            self._phase = 0
            self._queue.pop()
            self.steps_done += 1

    def _spend(self, run: PhaseRun, dt: float, *, computes: bool) -> None:
        """Let `dt` seconds of a run pass: energy, filter, temperature; the run's own noise goes with steps only."""
        self._t += dt
        powers = rail_powers_w(self._c, self.file.rails, run, self._leakage)
        keep = math.exp(-dt / (self.filter_samples * CONVERSION_S))
        factor = self._power_factor if computes else 1.0
        module_w = 0.0
        for rail, power_w in zip(self.file.rails, powers, strict=True):
            label = rail.label
            power_w *= factor
            self.true_power_w[label] = power_w
            self.true_energy_j[label] += power_w * dt
            self._filtered_w[label] = power_w + (self._filtered_w[label] - power_w) * keep
            if rail.inside is None:
                module_w += power_w
        goal = self._c.ambient_c + self._c.thermal_resistance_c_per_w * module_w
        self._die_c = goal + (self._die_c - goal) * math.exp(-dt / self._c.thermal_time_constant_s)
        self.devfreq.account(dt, run.busy)
        self._window_s += dt
        self._busy_s += dt * run.busy

    # --- clock

    @property
    def _index(self) -> int:
        return self._index_of[self.devfreq.cur_hz]

    def _poll(self) -> None:
        """The governor's poll, and once a second the thermal framework's; leakage follows the temperature from poll to poll."""
        self._leakage = leakage_factor(self._c, self.temp_c)
        self.load_permille = 0 if self.railgated else int(1000.0 * self._busy_s / self._window_s + 1e-9)
        self._window_s = self._busy_s = 0.0
        self._next_poll = self._t + max(self.devfreq.poll_ms, 1) / 1e3
        if self._t >= self._next_thermal:
            self._next_thermal = self._t + THROTTLE_EVERY_S
            self._throttle_step()
        if self.railgated:
            return
        self._podgov.index = self._index
        wish = self._podgov.poll(self.load_permille)
        self._set_clock(self._ondemand() if self.devfreq.governor == "simple_ondemand" else wish)

    def _ondemand(self) -> int:
        """Upstream's simple_ondemand (90 % up, 5 % down): index of the clock it wishes for."""
        load = self.load_permille / 1e3
        if load > 0.9:
            return len(self._mhz) - 1
        if load > 0.85:
            return self._index
        return self.devfreq.index_for(int(load * self.devfreq.cur_hz / 0.875))

    def _set_clock(self, wish: int) -> None:
        fixed = self.devfreq.fixed_wish_hz()
        index = self.devfreq.clamp_index(wish) if fixed is None else self.devfreq.index_for(fixed)
        self.devfreq.move_to(self.file.clocks_hz[index])

    def _on_bounds(self) -> None:
        """Bounds or governor were written: the clock follows at once."""
        self._set_clock(self._index)

    def _throttle_step(self) -> None:
        trip = self._c.throttle_c
        if self.temp_c > trip:
            self._throttle = min(self._throttle + 1, THROTTLE_STATES)
        elif self.temp_c < trip - THROTTLE_HYSTERESIS_C and self._throttle:
            self._throttle -= 1
        self._apply_thermal_cap()

    def _apply_thermal_cap(self) -> None:
        top = len(self._mhz) - 1
        caps = [self._fixed_cap_hz] if self._fixed_cap_hz is not None else []
        if self._throttle:
            caps.append(self.file.clocks_hz[round(top * (1 - self._throttle / (THROTTLE_STATES + 1)))])
        cap = min(caps, default=None)
        if cap != self.devfreq.thermal_cap_hz:
            self.devfreq.thermal_cap_hz = cap
            self._on_bounds()

    # --- boot

    def _boot(self, mode: PowerMode) -> None:
        self.boot_id = str(uuid.uuid4())
        self._booted = self._t
        self.oc_counts = {"oc1": 0, "oc2": 0, "oc3": 0}
        self.railgate_enable, self.railgated, self.power_control = True, False, "auto"
        self.filter_samples = 512
        self.load_permille, self._window_s, self._busy_s, self._throttle = 0, 0.0, 0.0, 0
        self._idle_since, self._next_thermal = self._t, self._t
        self._podgov = PodGov(len(self._mhz))
        self.devfreq.reset()
        self._next_poll = self._t + self.devfreq.poll_ms / 1e3
        self._enter(mode)
        self._die_c = self._c.ambient_c
        self._leakage = leakage_factor(self._c, self._die_c)
        self._filtered_w = dict.fromkeys(self._rails, 0.0)

    def _enter(self, mode: PowerMode) -> None:
        self._mode = mode
        self._c = self.file.constants if mode == self.file.mode() else self.file.in_mode(mode.name).constants
        self._runs = {}
        self.devfreq.apply_power_mode(mode.gpu_max_hz)

    def _settle(self) -> None:
        """Start as a board that has idled for long: warm, filters settled, the GPU gated."""
        run = idle_run(self._c, self._mhz[0], gated=True)
        powers = rail_powers_w(self._c, self.file.rails, run, 1.0)
        self.railgated = True
        self._idle_since = self._t - self._c.railgate_delay_s
        for rail, power_w in zip(self.file.rails, powers, strict=True):
            self._filtered_w[rail.label] = self.true_power_w[rail.label] = power_w
        module_w = sum(self.true_power_w[rail.label] for rail in self.file.module_rails)
        self._die_c = self._c.ambient_c + self._c.thermal_resistance_c_per_w * module_w
        self._leakage = leakage_factor(self._c, self._die_c)
