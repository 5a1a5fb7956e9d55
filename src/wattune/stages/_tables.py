"""Tables the stages write: CSV with a fixed column order and blanks for unknown; and the generated parts of pages."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattune.core.errors import InputError


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV text with a header; None becomes a blank cell.

    Raises:
        ValueError: a row has a column that is not listed.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def fill(text: str, parts: dict[str, str], name_of_page: str = "README.md") -> str:
    """Replace the marked parts of a page.

    Raises:
        InputError: a part's marks are missing.
    """
    for name, content in parts.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, found = pattern.subn(lambda m, content=content: m[1] + content + "\n" + m[2], text)  # type: ignore[misc]
        if not found:
            raise InputError(
                f"{name_of_page} has no marks for '{name}'.",
                f"<!-- {name}:begin --> and its end were expected.",
            )
    return text
