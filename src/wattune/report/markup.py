"""HTML and SVG as values: whatever is not marked as markup is escaped, so that no name can break the page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable

Attribute = str | float | bool | None

_VOID = frozenset({"meta", "input", "br"})
_SELF_CLOSING = frozenset({"path", "line", "rect", "circle", "use"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """`text` as it is to be read; markup stays as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=False))


def coordinate(value: float) -> str:
    """A length on the drawing: a tenth of a pixel is enough."""
    return f"{round(value, 1) + 0.0:g}"


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {spelled}"
    text = value if isinstance(value, str) else coordinate(value)
    return f' {spelled}="{html.escape(text)}"'


def tag(name: str, /, *children: str | None, **attributes: Attribute) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped, or markup; None is left out.
        attributes: numbers are drawing lengths; None and False are left out, True stands alone. ``class_`` is ``class``,
            other underscores are hyphens.
    """
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}"
    inner = "".join(escape(child) for child in children if child is not None)
    if name in _VOID:
        return Markup(f"{opened}>")
    if name in _SELF_CLOSING and not inner:
        return Markup(f"{opened}/>")
    return Markup(f"{opened}>{inner}</{name}>")


def join(parts: Iterable[str], separator: str = "") -> Markup:
    """Parts one after the other, escaped where they are not markup."""
    return Markup(str(escape(separator)).join(map(escape, parts)))


def exact(value: float | None) -> str | None:
    """A number as the reports' JSON spells it, for ``data-value``."""
    return None if value is None else json.dumps(value)


def number(value: float | None, digits: int = 1, unknown: str = "–") -> str:
    """A number for people, with a true minus sign."""
    if value is None:
        return unknown
    text = f"{round(value, digits) + 0.0:.{digits}f}"
    return text.replace("-", "−")


def significant(value: float | None) -> str:
    """A number of any size in five significant digits, never in exponents."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    return number(value, max(0, 5 - whole))


def data(value: float | None, digits: int = 1, **attributes: Attribute) -> Markup:
    """A number that says exactly what it stands for (``data-value``)."""
    return tag("span", number(value, digits), data_value=exact(value), **attributes)


def table(header: Iterable[str], rows: Iterable[Iterable[str]], **attributes: Attribute) -> Markup:
    """A table whose first column names its rows; it scrolls by itself where the window is narrow."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [
        tag("tr", *(tag("td", cell) if i else tag("th", cell, scope="row") for i, cell in enumerate(row)))
        for row in rows
    ]
    return tag("table", tag("thead", head), tag("tbody", *body), **attributes)


def scrolling(content: Markup, label: str) -> Markup:
    """A wide thing in a box that scrolls sideways, with the keyboard too."""
    return tag("div", content, class_="scroll", role="region", tabindex="0", aria_label=label)


def details(summary: str, *content: str, open_: bool = False, **attributes: Attribute) -> Markup:
    """Something to unfold."""
    return tag("details", tag("summary", summary), *content, open=open_, **attributes)
