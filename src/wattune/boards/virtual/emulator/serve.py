"""`wattune emulate DIR`: claim a folder, serve a board's tree in it, and leave it as it was found."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from wattune.boards.virtual.emulator import fuse, plain, supervisor, volatile
from wattune.boards.virtual.emulator.boardtree import BoardTree
from wattune.boards.virtual.emulator.faults import in_force
from wattune.boards.virtual.emulator.machine import Machine
from wattune.boards.virtual.emulator.tree import File, Tree
from wattune.core.errors import BoardError, InputError, WattuneError
from wattune.core.workload import Workload

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 1.0
"""A killed server's supervisor may hold the folder for a moment."""
QUIT_GRACE_S = 0.1
"""The write of `quit` gets its answer before the mount goes."""

LINE_SHOWN = 80
COMMANDS = "workload NAME|idle, train NAME, step LENGTH, fault NAME ARGS, quit"

Workloads = Callable[[str], Workload | None]
Faults = Callable[[str], None]
Build = Callable[[argparse.Namespace], tuple[Machine, Tree, Workloads, Faults]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="an empty folder, or one that is made for the time"
    )
    parser.add_argument(
        "--mode",
        choices=("auto", "fuse", "dir"),
        default="auto",
        help="a mounted file system, a plain folder that is kept alive, or the first where it is possible (default: %(default)s)",
    )
    parser.add_argument(
        "--board", default="jetson-agx-orin-64gb", metavar="ID", help="which board (default: %(default)s)"
    )
    parser.add_argument(
        "--jetpack",
        metavar="{5,6,7.2}",
        help="whose paths and texts; default: 6, or 5 where the board has no 6",
    )
    parser.add_argument(
        "--workload",
        default="bert-base-sst2",
        metavar="WORKLOAD",
        help="trained without end; `idle` for none (default: %(default)s)",
    )
    parser.add_argument(
        "--power-mode", metavar="NAME", help="the power mode in force; default: the one of the constants file"
    )
    parser.add_argument("--constants", type=Path, metavar="FILE", help="constants of the board's model")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="'NAME ARGS'", help="inject a fault from the start on"
    )


def run(args: argparse.Namespace, build: Build) -> int:
    """Build a board as the arguments say and serve it until told to stop; returns the exit code."""
    machine, tree, workloads, faults = build(args)
    return serve(
        machine,
        tree,
        args.directory,
        mode=args.mode,
        workloads=workloads,
        faults=faults,
        injected=args.fault,
    )


def serve(
    machine: Machine,
    tree: Tree,
    directory: Path,
    *,
    mode: str,
    workloads: Workloads,
    faults: Faults,
    injected: Sequence[str] = (),
) -> int:
    """Serve a tree until a signal or `quit`; what was made is removed again.

    Args:
        machine: the board behind the tree.
        tree: what is served; `emulator/` is added to it.
        directory: where.
        mode: ``auto``, ``fuse`` or ``dir``.
        workloads: a workload by name; raises InputError for an unknown one.
        faults: injects a fault; raises InputError for an unknown one.
        injected: faults to start with.

    Returns:
        Exit code 0.

    Raises:
        InputError: a folder that is not ours to use, or an unknown fault.
        BoardError: no permission, no FUSE where it was asked for, or another emulator on the same tree.
    """
    with _stop_signals() as wait_for_signal, _claimed(directory) as (where, created):
        control = Control(machine, tree, workloads, faults)
        for text in injected:
            control.obey(f"fault {text}")
        private = volatile.private_path()
        with supervisor.supervised(where, created=created, private=private):
            served = _open(machine, tree, where, mode, control, private)
            started = time.monotonic()
            try:
                _keep(machine, served, control, wait_for_signal, directory)
            finally:
                try:
                    served.close()
                except OSError as error:
                    _say(
                        f"{directory} could not be unmounted: {error.strerror}. Type `umount -l {directory}`."
                    )
                if left := _names(where):
                    _say(f"Left in {directory}, since it was not made here: {', '.join(left)}.")
                seconds = time.monotonic() - started
                _say(f"Stopped after {seconds:.1f} s. True energy (simulated): {_spent(machine)}.")
    return 0


class Control:
    """The files in `emulator/`: `control` takes commands, `status.json` says how things are, `steps` how many are done.

    Args:
        machine: the board.
        tree: gets the two files.
        workloads: see :func:`serve`.
        faults: see :func:`serve`.
    """

    def __init__(self, machine: Machine, tree: Tree, workloads: Workloads, faults: Faults) -> None:
        self._machine, self._tree, self._workloads, self._apply = machine, tree, workloads, faults
        self._last_error: str | None = None
        self.mode = ""
        self.quit = threading.Event()
        tree.add("emulator/control", File(lambda: f"# {COMMANDS}\n", self._write))
        tree.add("emulator/status.json", File(self._status))
        tree.add("emulator/steps", File(self._steps))

    def obey(self, line: str) -> None:
        """Carry out one command.

        Raises:
            InputError: an unknown command, workload or fault.
        """
        command, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if command == "quit" and not rest:
            self.quit.set()
        elif command == "workload" and rest:
            workload = None if rest == "idle" else self._workloads(rest)
            with self._machine.lock:
                self._machine.advance()
                self._machine.set_workload(workload)
        elif command == "train" and rest:
            known = self._workloads(rest)
            with self._machine.lock:
                self._machine.advance()
                self._machine.set_workload(known, on_demand=True)
        elif command == "step" and rest:
            self._machine.ask_step(_length(rest))
        elif command == "fault" and rest:
            if self.mode == "dir" and rest.split()[0] == "hang":
                raise InputError(
                    "A file of a plain folder cannot hang.",
                    "A mounted tree was expected.",
                    "Use `--mode fuse`.",
                )
            self._apply(rest)
        else:
            raise InputError(f"'{_short(line)}' is not a command.", f"One of {COMMANDS} was expected.")

    def refused(self, path: str, reason: str) -> None:
        """A write that a plain directory could not refuse was put back."""
        if path != "emulator/control":  # its own reason says more
            self._last_error = f"{path}: {reason}"
        _say(f"A write to {path} was put back: {reason.rstrip('.')}.")

    def _write(self, text: str) -> None:
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            try:
                self.obey(line)
                self._last_error = None
            except WattuneError as error:
                self._last_error = str(error)
                raise OSError(errno.EINVAL, str(error)) from error

    def _steps(self) -> str:
        with self._machine.lock:
            self._machine.advance()
            return f"{self._machine.steps_done}\n"

    def _in_force(self) -> list[str]:
        return in_force(self._machine, self._tree) if isinstance(self._tree, BoardTree) else []

    def _status(self) -> str:
        m = self._machine
        with m.lock:
            m.advance()
            low, high = m.devfreq.bounds_hz()
            document = {
                "provenance": "simulated",
                "board": m.file.board,
                "jetpack": m.jetpack,
                "mode": self.mode,
                "pid": os.getpid(),
                "power_mode": m.power_mode,
                "workload": m.workload_id,
                "steps": m.steps_done,
                "gpu_mhz": m.devfreq.cur_hz / 1e6,
                "bounds_hz": [low, high],
                "true_power_w": with_sums(m, m.true_power_w),
                "true_energy_j": with_sums(m, m.true_energy_j),
                "faults": self._in_force(),
                "boot_id": m.boot_id,
                "uptime_s": m.uptime_s,
                "last_error": self._last_error,
            }
        return json.dumps(document, indent=2) + "\n"


def _length(text: str) -> float:
    try:
        length = float(text)
        if not 0 < length < float("inf"):
            raise ValueError
    except ValueError:
        raise InputError(
            f"'{_short(text)}' is no length.", "Tokens per example, above 0, were expected."
        ) from None
    return length


def with_sums(machine: Machine, by_rail: Mapping[str, float]) -> dict[str, float]:
    """Values of the sums ``gpu_cpu`` and ``module``, and per rail."""
    rails = machine.file.module_rails
    return {
        "gpu_cpu": sum(by_rail[rail.label] for rail in rails if rail.gpu_cpu),
        "module": sum(by_rail[rail.label] for rail in rails),
        **by_rail,
    }


def _spent(machine: Machine) -> str:
    with machine.lock:
        machine.advance()
        energy = with_sums(machine, machine.true_energy_j)
    return ", ".join(f"{name} {joules:.3f} J" for name, joules in energy.items())


def _say(text: str) -> None:
    log.warning("wattune: %s", text)


def _open(
    machine: Machine, tree: Tree, where: Path, mode: str, control: Control, private: Path
) -> fuse.Mount | plain.Mirror:
    """Serve by FUSE where it is asked for or possible, else by a plain folder."""
    if mode != "dir":
        control.mode = "fuse"
        reason = fuse.why_not()
        if reason is None:
            try:
                return fuse.Mount(tree, where, machine.lock, private=private)
            except OSError as error:
                reason = error.strerror
        if mode == "fuse":
            raise BoardError(
                f"The tree cannot be mounted: {reason}",
                "FUSE was asked for.",
                "Say `--mode dir` for a plain directory, or `--mode auto` to take what there is.",
            )
        _say(f"FUSE is not used: {reason} A plain directory is kept alive instead.")
    control.mode = "dir"
    _say(plain.LIMITS)
    return plain.Mirror(tree, where, machine.lock, control.refused, run=True)


def _keep(
    machine: Machine,
    served: fuse.Mount | plain.Mirror,
    control: Control,
    wait_for_signal: Callable[[float], bool],
    directory: Path,
) -> None:
    """Keep the tree alive until somebody says stop."""
    _poll(served, directory)
    sys.stdout.write(f"mode: {control.mode}\nready: {directory}\n")
    sys.stdout.flush()
    while not control.quit.is_set() and not wait_for_signal(served.period_s):
        with machine.lock:
            machine.advance()
        _poll(served, directory)
    if control.quit.is_set() and control.mode == "fuse":
        time.sleep(QUIT_GRACE_S)


def _poll(served: fuse.Mount | plain.Mirror, directory: Path) -> None:
    try:
        served.poll()
    except OSError as error:
        raise BoardError(
            f"The tree in {directory} can no longer be served: {error.strerror}.",
            "A folder with room that stays where it is was expected.",
            "Free some space or name another folder, and start again.",
        ) from error


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[float], bool]]:
    """Take the signals that stop us as answers of a wait, not as interruptions anywhere; `nohup` is respected.

    Yields:
        Waits up to some seconds; whether a signal came.
    """
    signals = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.add(signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield lambda seconds: signal.sigtimedwait(signals, seconds) is not None
    finally:
        while signal.sigtimedwait(signals, 0) is not None:  # a second Ctrl-C while we cleaned up
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[tuple[Path, bool]]:
    """Make sure that a folder is ours alone and empty; make it where it is missing, remove it then in the end.

    Yields:
        Its resolved path, and whether it was made.
    """
    # The folder itself is looked at only once it is known that no dead or stopped server is mounted on it.
    where = (
        Path(os.path.realpath(directory.parent)) / directory.name if directory.name else directory.resolve()
    )
    _refuse_mounted(where, directory)
    where = where.resolve()
    created = _make_folder(where, directory)
    try:
        _refuse_mounted(where, directory)
        with contextlib.ExitStack() as stack:
            try:
                free = stack.enter_context(supervisor.locked(where, LOCK_PATIENCE_S))
            except OSError as error:
                raise _no_permission(directory, error) from error
            if not free:
                _refuse_mounted(where, directory)
                raise _another(directory, supervisor.marker_pid(where))
            _clean_stale(where, directory)
            if not os.access(where, os.R_OK | os.W_OK | os.X_OK):
                raise _no_permission(directory, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
            names = _names(where)
            if names:
                raise InputError(
                    f"{directory} is not empty (it holds {', '.join(names[:3])}).",
                    "An empty folder, or a name that is still free, was expected.",
                    "Name another folder.",
                )
            yield where, created
    finally:
        if created:
            with contextlib.suppress(OSError):
                where.rmdir()


def _short(line: str) -> str:
    """A line as a message can hold it."""
    text = line.strip()
    return text if len(text) <= LINE_SHOWN else f"{text[:LINE_SHOWN]}..."


def _names(where: Path) -> list[str]:
    try:
        return sorted(path.name for path in where.iterdir())
    except OSError:
        return []


def _make_folder(where: Path, directory: Path) -> bool:
    try:
        where.mkdir()
    except FileExistsError:
        if where.is_dir():
            return False
        raise InputError(
            f"{directory} is a file.", "An empty or new folder was expected.", "Name another folder."
        ) from None
    except (FileNotFoundError, NotADirectoryError) as error:
        if where.parent.is_dir():  # as in proc, where nobody can make anything
            raise _no_permission(directory, error) from error
        raise InputError(
            f"{directory} cannot be made: {directory.parent} is not a folder.",
            "A folder that exists, or one whose parent exists, was expected.",
            f"Make it first: `mkdir -p {directory}`.",
        ) from error
    except OSError as error:
        raise _no_permission(directory, error) from error
    return True


def _refuse_mounted(where: Path, directory: Path) -> None:
    """Refuse a mount point in use; unmount what a dead emulator left."""
    source = supervisor.mount_source(where)
    if source is None:
        return
    pid = supervisor.server_pid(source)
    if pid is None:
        raise InputError(
            f"{directory} is a mount point in use ({source}).",
            "An empty or new folder was expected.",
            "Name another folder.",
        )
    if _runs(pid):
        raise _another(directory, pid)
    try:
        os.statvfs(where)  # the kernel asks the server; a stat may come from its cache
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise _no_permission(directory, error) from error
    else:
        raise _another(directory, pid)
    _say(
        f"A stale mount of an emulator that was killed (process {pid}) was found on {directory} and removed."
    )
    try:
        supervisor.unmount(where, patience_s=0)
    except OSError as error:
        raise BoardError(
            f"The stale mount on {directory} could not be removed: {error.strerror}.",
            "A folder without a mount was expected.",
            f"Remove it: `umount -l {directory}`.",
        ) from error
    volatile.remove_left(pid)


def _clean_stale(where: Path, directory: Path) -> None:
    pid = supervisor.marker_pid(where)
    if pid is not None:
        _say(
            f"A stale tree of an emulator that was killed (process {pid}) was found in {directory} and removed."
        )
        supervisor.remove_mirror(where)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _another(directory: Path, pid: int | None) -> BoardError:
    who = "another process" if pid is None else f"process {pid}"
    end = "Stop it" if pid is None else f"Stop it (`kill {pid}`)"
    return BoardError(
        f"Another emulator ({who}) serves {directory}.",
        "One emulator per folder was expected.",
        f"{end}, or name another folder.",
    )


def _no_permission(directory: Path, error: OSError) -> BoardError:
    return BoardError(
        f"{directory} cannot be used: {error.strerror}.",
        "A folder you may write to was expected.",
        "Name another folder, or give yourself permission.",
    )
