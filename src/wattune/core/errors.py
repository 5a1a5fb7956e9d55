"""Foreseeable faults: each carries one clear message and the exit code a command ends with."""

from __future__ import annotations


class WattuneError(Exception):
    """A fault we foresaw.

    Args:
        what: one sentence, what happened.
        expected: one sentence, what was expected instead.
        hint: one sentence, what to type or do next.
    """

    exit_code = 1

    def __init__(self, what: str, expected: str = "", hint: str = "") -> None:
        self.what, self.expected, self.hint = what, expected, hint
        super().__init__(" ".join(part for part in (what, expected, hint) if part))


class InputError(WattuneError):
    """Bad input or configuration (exit code 2)."""

    exit_code = 2


class BoardError(WattuneError):
    """The board or the system cannot do it: absent, no permission, verification failed, disk full (exit code 3)."""

    exit_code = 3


class IntegrityError(WattuneError):
    """A file that is damaged, foreign or unsafe was refused (exit code 4)."""

    exit_code = 4
