"""A tree of files whose content is computed when it is read, and whose writes are acted on: what the kernel's sysfs is.

The tree knows nothing of how it is served: `fuse` mounts it, `plain` mirrors it into an ordinary folder.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class File:
    """A file.

    Attributes:
        read: its content now; raises OSError with the errno the kernel's driver would give.
        write: what a written text does; None: nobody may write it (EACCES, root included), as a sysfs file without a store.
        hangs: reads and writes of it never return (a deadlocked driver).
    """

    read: Callable[[], str]
    write: Callable[[str], None] | None = None
    hangs: Callable[[], bool] | None = None

    @property
    def mode(self) -> int:
        """Permission bits: 0644 where it can be written, else 0444."""
        return 0o644 if self.write is not None else 0o444


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; `target` is relative, so that the tree can lie anywhere."""

    target: str


Entry = File | Link


class Tree:
    """Paths (relative, ``sys/class/...``) to files and links; folders follow from them.

    Hidden prefixes are absent until shown again: that is how a device node that appears late is played.

    Attributes:
        run: where the content of the volatile folder ``run`` lies on the disk; set by whoever serves one beside the tree.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, dict[str, None]] = {"": {}}
        self._hidden: set[str] = set()
        self.run: Path | None = None

    def add(self, path: str, entry: Entry) -> None:
        """Add a file or link; its folders come into being."""
        assert path not in self._entries, path
        self._entries[path] = entry
        while path:
            parent = posixpath.dirname(path)
            known = parent in self._children
            self._children.setdefault(parent, {})[posixpath.basename(path)] = None
            if known:
                break
            path = parent

    def link(self, path: str, to: str) -> None:
        """Add a link at `path` to `to`, both from the tree's root."""
        # Both from a root: a relative path would be looked up in the working directory, which may be gone.
        self.add(path, Link(posixpath.relpath(f"/{to}", f"/{posixpath.dirname(path)}")))

    def hide(self, prefix: str) -> None:
        """Make `prefix` and what lies below it absent."""
        self._hidden.add(prefix)

    def show(self, prefix: str) -> None:
        """Undo :meth:`hide`."""
        self._hidden.discard(prefix)

    def hidden(self, path: str) -> bool:
        """Whether a path lies at or below a hidden prefix."""
        return any(path == p or path.startswith(p + "/") for p in self._hidden)

    def entry(self, path: str) -> Entry | None:
        """The file or link at a path; None for a folder.

        Raises:
            FileNotFoundError: nothing is there.
        """
        if self.hidden(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        found = self._entries.get(path)
        if found is None and path not in self._children:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found

    def children(self, path: str) -> list[str]:
        """Names in a folder.

        Raises:
            FileNotFoundError: nothing is there.
            NotADirectoryError: it is a file or link.
        """
        if self.entry(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        names = self._children[path]
        if not self._hidden:
            return list(names)
        return [name for name in names if not self.hidden(posixpath.join(path, name))]

    def walk(self) -> Iterator[tuple[str, Entry]]:
        """All visible files and links."""
        for path, entry in self._entries.items():
            if not self.hidden(path):
                yield path, entry
