"""The fsspec file system `forebay`: local files for pandas, pyarrow, zarr, dask and others.

>>> import pandas
>>> table = pandas.read_parquet("forebay:///srv/tables/part-0.parquet")

Paths, listings, writes, moves and removals are those of fsspec's local file system. Reads are made by Forebay: the ranges of
`cat_ranges` are one batch, and open files read ahead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from forebay._batch import Batch, Turns, open_to_read, read_file
from forebay._urls import path_of

__all__ = ["AsyncForebayFileSystem", "ForebayFile", "ForebayFileSystem"]

_READ_MODES = ("adaptive", "direct", "buffered", "uncached")


class ForebayFileSystem(LocalFileSystem):  # type: ignore[misc]
    """fsspec's local file system with reads by Forebay.

    `read_mode` is the mode of forebay.open, `block_size` the bytes of one read of an open file (4 MiB by default). (`mode` is
    fsspec's term: `fsspec.open` accepts it as "rb" and never passes it to a file system.)

    After `forebay://` a path starts at the root, with or without a further slash: `forebay://srv/a` and `forebay:///srv/a` are the
    same file. Paths without the protocol, or with only `forebay:`, may be relative.
    """

    protocol = ("forebay",)
    root_marker = "/"
    cachable = True

    def __init__(
        self, auto_mkdir: bool = False, read_mode: str = "adaptive", block_size: int = 4 << 20, **options: Any
    ) -> None:
        if read_mode not in _READ_MODES:
            raise ValueError(f"read_mode is {read_mode!r}; use one of {', '.join(_READ_MODES)}")
        if options.get("mode") in _READ_MODES:
            raise TypeError("mode is fsspec's word for open files; use read_mode")
        super().__init__(auto_mkdir=auto_mkdir, **options)
        self.read_mode = read_mode
        self.block_size = block_size

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(part) for part in path]
        return LocalFileSystem._strip_protocol(path_of(os.fspath(path)))

    def unstrip_protocol(self, name: str) -> str:
        """Returns a path with the protocol in front."""
        return f"forebay://{self._strip_protocol(name)}"

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_type: str = "readahead",
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if mode != "rb":
            return super()._open(path, mode, block_size=block_size, autocommit=autocommit, **options)
        return ForebayFile(
            self,
            path,
            mode,
            block_size=block_size or self.block_size,
            cache_type=cache_type,
            cache_options=cache_options,
        )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Reads a file, or a part of it."""
        return read_file(self._strip_protocol(path), start, end, self.read_mode)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        """Reads ranges of files as one batch. Ranges that end behind the end of their file are cut there. Of many files only some are open
        at a time.

        With `on_error` "return" a file that cannot be read gives its exception for each of its ranges, otherwise it raises.
        """
        batch = self._batch(paths, starts, ends, max_gap)
        return _checked(batch.read(max_gap), on_error)

    def _batch(self, paths: Sequence[str], starts: Any, ends: Any, max_gap: int | None) -> Batch:
        if max_gap is not None and max_gap < 0:
            raise ValueError(f"max_gap is {max_gap}; it must not be negative")
        count = len(paths)
        starts = list(starts) if isinstance(starts, (list, tuple)) or hasattr(starts, "__iter__") else [starts] * count
        ends = list(ends) if isinstance(ends, (list, tuple)) or hasattr(ends, "__iter__") else [ends] * count
        if len(starts) != count or len(ends) != count:
            raise ValueError(f"there are {count} paths, {len(starts)} starts and {len(ends)} ends")
        return Batch(zip(map(self._strip_protocol, paths), starts, ends), self.read_mode)


def _checked(results: list[bytes | Exception], on_error: str) -> list[bytes | Exception]:
    if on_error != "return":
        for result in results:
            if isinstance(result, Exception):
                raise result
    return results


class AsyncForebayFileSystem(AsyncFileSystemWrapper):  # type: ignore[misc]
    """The same file system for asyncio, with the same arguments: `AsyncForebayFileSystem(asynchronous=True)`.

    Its reads need no thread. `_cat_ranges` is one batch, and so are all `_cat_file` that start in one turn of the loop, as those of
    `_cat`. All other calls are those of ForebayFileSystem in threads.
    """

    def __init__(self, *arguments: Any, asynchronous: bool | None = None, **options: Any) -> None:
        super().__init__(ForebayFileSystem(*arguments, **options), asynchronous=asynchronous)
        # The wrapper has put threads before the methods of this class.
        for name in ("_cat", "_cat_file", "_cat_ranges"):
            self.__dict__.pop(name, None)
        self._turns = Turns(self.sync_fs.read_mode)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return await self._turns.read(self._strip_protocol(path), start, end)

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        batch = self.sync_fs._batch(paths, starts, ends, max_gap)
        return _checked(await batch.aread(max_gap), on_error)


class ForebayFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of the file system, to read."""

    # The one of `fileno`.
    _descriptor = -1

    def __init__(self, fs: ForebayFileSystem, path: str, mode: str = "rb", **options: Any) -> None:
        self._file = open_to_read(path, fs.read_mode)
        size = self._file.size
        # A size of 0 may say nothing, as that of a file of /proc: one read finds out.
        self._whole = self._file.read(0) if size == 0 else None
        super().__init__(fs, path, mode, size=size if self._whole is None else len(self._whole), **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._whole is not None:
            return self._whole[start:end]
        return self._file.read(start, end - start)

    def seek(self, loc: int, whence: int = 0) -> int:
        """Moves the position. Before the start it raises OSError, as files of the system do."""
        begin = self.loc if whence == 1 else self.size if whence == 2 else 0
        if begin + int(loc) < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        position: int = super().seek(loc, whence)
        return position

    def fileno(self) -> int:
        """Returns a descriptor of the file, at its position, for programs that read by it: numpy.fromfile, standard input. It reads through
        the page cache, as that of the modes "adaptive" and "direct" needs aligned memory."""
        own = self._file.fileno()
        if self._descriptor < 0:
            self._descriptor = os.open(f"/proc/self/fd/{own}", os.O_RDONLY)
        os.lseek(self._descriptor, self.tell(), os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        """Closes the file."""
        super().close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def __reduce__(self) -> Any:
        return _reopen, (self.fs, self.path, self.blocksize, self.tell())


def _reopen(fs: ForebayFileSystem, path: str, block_size: int, position: int) -> Any:
    file = fs.open(path, "rb", block_size=block_size)
    file.seek(position)
    return file
