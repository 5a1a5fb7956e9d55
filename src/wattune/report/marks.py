"""How policies look: a name, a colour and, since colour must not be needed, a shape of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wattune.core.policies import POLICY_ORDER
from wattune.report.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Mark:
    """A policy's mark.

    Attributes:
        light: colour on white; `dark` on black (both at least 3:1, told apart by the common kinds of colour blindness).
        dark: see `light`.
        path: its shape around 0, 0, some ten pixels wide.
        filled: filled, else an outline.
    """

    label: str
    light: str
    dark: str
    path: str
    filled: bool


MARKS = {
    "maxn": Mark("MAXN", "#6b6b6b", "#a8a8a8", "M-5-1.2H5V1.2H-5Z", True),
    "ffg": Mark("FFG (one clock)", "#a86f00", "#f0b030", "M-4-4H4V4H-4Z", False),
    "published": Mark("published rules", "#007a58", "#2fc79a", "M0-4.8 4.6 3.6H-4.6Z", False),
    "published-util": Mark("published + util", "#2a85b8", "#7cc8f2", "M0 4.8 4.6-3.6H-4.6Z", False),
    "mlg": Mark("MLG (tree)", "#c04f00", "#ff8a4a", "M-4 0A4 4 0 0 0 4 0 4 4 0 0 0-4 0Z", True),
    "mlg-regret": Mark("MLG-regret", "#a8568a", "#e79cc6", "M0-5 4.4 0 0 5-4.4 0Z", True),
    "curve": Mark(
        "curve", "#7d7000", "#f0e442", "M-1.6-4.6H1.6V-1.6H4.6V1.6H1.6V4.6H-1.6V1.6H-4.6V-1.6H-1.6Z", True
    ),
    "probe": Mark(
        *("probe", "#1a1a1a", "#ffffff"),
        *("M-4.2-2.2-2.2-4.2 0-2 2.2-4.2 4.2-2.2 2 0 4.2 2.2 2.2 4.2 0 2-2.2 4.2-4.2 2.2-2 0Z", True),
    ),
    "oracle": Mark(
        *("oracle", "#0060a0", "#6cb4f0"),
        *("M0-5.5 1.4-1.9 5.2-1.7 2.3.7 3.2 4.4 0 2.4-3.2 4.4-2.3.7-5.2-1.7-1.4-1.9Z", False),
    ),
}
OTHER = Mark("", "#5a5a5a", "#c0c0c0", "M-5 0-2.5-4.3H2.5L5 0 2.5 4.3H-2.5Z", False)
"""Of a policy nobody named here."""


def place(policy: str) -> int:
    """Place of a policy in tables, from 0; those nobody named come last."""
    return POLICY_ORDER.index(policy) if policy in POLICY_ORDER else len(POLICY_ORDER)


def in_order(policies: Iterable[str]) -> list[str]:
    """Policies in the order of tables."""
    return sorted(policies, key=lambda policy: (place(policy), policy))


def label(policy: str) -> str:
    """A policy's name for people."""
    return MARKS[policy].label if policy in MARKS else policy


def mark(policy: str, x: float, y: float) -> Markup:
    """The policy's mark at a place of a drawing."""
    return tag("use", href=f"#m{place(policy)}", class_=f"m{place(policy)}", x=x, y=y)


def swatch(policy: str) -> Markup:
    """The mark in a line of text."""
    return tag("svg", mark(policy, 7, 7), class_="swatch", width="14", height="14", aria_hidden="true")


def symbols() -> Markup:
    """The shapes, once for the whole page."""
    shapes = [
        tag(
            "path",
            id=f"m{place(policy)}",
            d=one.path,
            fill="currentColor" if one.filled else "none",
            stroke="currentColor",
            stroke_width="1.6" if not one.filled else "0.6",
        )
        for policy, one in {**MARKS, "": OTHER}.items()
    ]
    return tag("svg", tag("defs", *shapes), width="0", height="0", class_="symbols", aria_hidden="true")


def colours(*, dark: bool) -> str:
    """CSS rules of the colours."""
    return "".join(
        f".m{place(policy)}{{color:{one.dark if dark else one.light}}}"
        for policy, one in {**MARKS, "": OTHER}.items()
    )
