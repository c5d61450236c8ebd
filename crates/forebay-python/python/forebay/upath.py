"""The class of universal_pathlib for `forebay://` paths, which it finds by an entry point of this package."""

from __future__ import annotations

from upath import UPath

__all__ = ["ForebayPath"]


class ForebayPath(UPath):
    """A UPath whose file system is ForebayFileSystem."""

    __slots__ = ()
