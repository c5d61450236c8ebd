"""Ranges of files by their paths, read as one batch: for fsspec and zarr."""

from __future__ import annotations

import asyncio
import operator
import os
import stat
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, cast

import forebay
from forebay._aio import end as end_of
from forebay._aio import place
from forebay._forebay import Files

__all__ = ["Batch", "FileSet", "Turns", "open_to_read", "read_file"]

# Ranges from here on are read by themselves, into their bytes: a batch has its bytes twice for a moment.
_LONG_BYTES = 4 << 20
# Of these on a loop together, each with an open file.
_LONG_READS = 16
# Files of which no more are added to a set.
_SET_FILES = 256

_Range = tuple[str, "int | None", "int | None"]


def open_to_read(path: str, mode: str) -> forebay.File:
    """Opens a file; a directory raises IsADirectoryError."""
    if os.path.isdir(path):
        raise IsADirectoryError(21, "Is a directory", path)
    return forebay.open(path, cast(Any, mode))


def read_file(path: str, start: int | None, end: int | None, mode: str) -> bytes:
    """Reads a file, or a part of it; negative bounds count from its end."""
    with open_to_read(path, mode) as file:
        size = file.size
        if size == 0 and not start and end is None:
            return file.read(0)
        start, end = _bounds(size, start, end)
        return file.read(start, max(end - start, 0))


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Returns the bounds of a range, of which negative numbers count from the end of the file. They may be numbers of numpy, whose sums and
    differences have their own types."""
    start = 0 if start is None else operator.index(start)
    end = size if end is None else operator.index(end)
    return max(start + size, 0) if start < 0 else start, end + size if end < 0 else min(end, size)


# By weak references: a semaphore refers to its loop.
_limits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[asyncio.Semaphore]] = weakref.WeakKeyDictionary()


def _limit() -> asyncio.Semaphore:
    """Returns the limit of the long reads of the running loop, which all of its batches share."""
    loop = asyncio.get_running_loop()
    known = _limits.get(loop)
    limit = known() if known else None
    if limit is None:
        limit = asyncio.Semaphore(_LONG_READS)
        _limits[loop] = weakref.ref(limit)
    return limit


class FileSet:
    """Files by their paths. They stay open from their first read on, as long as the set is there."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.files = Files([], mode)
        # The number, the device and the inode of each.
        self._known: dict[str, tuple[int, int, int]] = {}
        self._is_stale = False

    def find(self, path: str) -> tuple[int, int]:
        """Returns the number and the size of the file to which a path leads now."""
        found = os.stat(path)
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            # A device has its size elsewhere.
            with open_to_read(path, self.mode) as file:
                size = file.size
        known = self._known.get(path)
        if known is None or known[1:] != (found.st_dev, found.st_ino):
            self._is_stale |= known is not None
            number = self.files.add(path, found.st_dev, found.st_ino)
            known = self._known[path] = (number, found.st_dev, found.st_ino)
        return known[0], size

    def has(self, path: str) -> bool:
        """Returns whether it has a file to which a path led."""
        return path in self._known

    def is_over(self) -> bool:
        """Returns whether it has enough files, or one that another file has replaced."""
        return self._is_stale or len(self._known) >= _SET_FILES


class Batch:
    """Ranges of files, each of a path, a start and an end. One that ends behind the end of its file is cut there, and one that cannot be
    read gives its exception in place of its bytes. Without a set of files they are closed after the read."""

    def __init__(self, ranges: Iterable[_Range], mode: str, files: FileSet | None = None) -> None:
        self._mode = mode
        self._is_alone = files is None
        files = files or FileSet(mode)
        self._files = files.files
        self._results: list[bytes | Exception] = []
        # Of those that are left to read: a file's number, offset and length; and their paths and the places of their results.
        self._requests: list[tuple[int, int, int]] = []
        self._places: list[tuple[int, str]] = []
        # Long ranges: the place of the result, path, start and end.
        self._long: list[tuple[int, str, int, int]] = []
        known: dict[str, tuple[int, int] | Exception] = {}
        for number, (path, start, end) in enumerate(ranges):
            if path not in known:
                try:
                    known[path] = files.find(path)
                except (OSError, ValueError) as error:
                    known[path] = _bare(error)
            found = known[path]
            if isinstance(found, Exception):
                self._results.append(found)
                continue
            file, size = found
            if size == 0 and not start and end is None:
                # A size of 0 may say nothing, as that of a file of /proc.
                self._results.append(self._read_one(path, None, None))
                continue
            try:
                start, end = _bounds(size, start, end)
            except TypeError as error:
                self._results.append(_bare(error))
                continue
            self._results.append(b"")
            if end - start >= _LONG_BYTES:
                self._long.append((number, path, start, end))
            elif end > start:
                self._requests.append((file, start, end - start))
                self._places.append((number, path))

    def read(self, max_gap: int | None = None) -> list[bytes | Exception]:
        """Reads them."""
        try:
            try:
                self._take(self._files.read_many(self._requests, max_gap=max_gap))
            finally:
                self._let_go()
        except (OSError, EOFError):
            self._read_each()
        for number, path, start, end in self._long:
            self._results[number] = self._read_one(path, start, end)
        return self._results

    async def aread(self, max_gap: int | None = None) -> list[bytes | Exception]:
        """Reads them on an asyncio loop."""
        limit = _limit()
        await asyncio.gather(self._aread_short(max_gap), *(self._aread_long(limit, *each) for each in self._long))
        return self._results

    async def _aread_long(self, limit: asyncio.Semaphore, number: int, path: str, start: int, end: int) -> None:
        async with limit:
            try:
                with open_to_read(path, self._mode) as file:
                    self._results[number] = await file.aread(start, end - start)
            except (OSError, EOFError, MemoryError) as error:
                self._results[number] = _bare(error)

    async def _aread_short(self, max_gap: int | None) -> None:
        try:
            try:
                self._take(await end_of(self._files._begin_read_many(*place(), self._requests, max_gap=max_gap)))
            finally:
                self._let_go()
        except (OSError, EOFError):
            await asyncio.to_thread(self._read_each)

    def _let_go(self) -> None:
        if self._is_alone:
            self._files.close()

    def _take(self, views: Sequence[memoryview]) -> None:
        for (number, _), view in zip(self._places, views):
            self._results[number] = bytes(view)

    def _read_each(self) -> None:
        """Reads one by one, so that each failure is that of its range."""
        for (number, path), (_, start, length) in zip(self._places, self._requests):
            self._results[number] = self._read_one(path, start, start + length)

    def _read_one(self, path: str, start: int | None, end: int | None) -> bytes | Exception:
        try:
            return read_file(path, start, end, self._mode)
        except (OSError, EOFError, MemoryError) as error:
            return _bare(error)


def _bare(error: Exception) -> Exception:
    """Returns an error that does not keep the batch, and its files, by the frames that it came through."""
    return error.with_traceback(None)


_Asked = list[tuple[str, "int | None", "int | None", "asyncio.Future[bytes]"]]


class Turns:
    """Reads of the tasks of asyncio loops: reads that start in one turn of a loop are one batch. With `keeps_files` the files that
    were read last stay open."""

    def __init__(self, mode: str, keeps_files: bool = False) -> None:
        self._mode = mode
        self._keeps_files = keeps_files
        self._files: FileSet | None = None
        self._asked: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Asked] = weakref.WeakKeyDictionary()
        # A loop keeps its tasks by weak references.
        self._tasks: set[asyncio.Task[None]] = set()

    def batch(self, ranges: Iterable[_Range]) -> Batch:
        """Returns a batch of ranges."""
        files = self._files
        if self._keeps_files and (files is None or files.is_over()):
            # Those of the old set are closed when the reads under way have ended.
            files = self._files = FileSet(self._mode)
        return Batch(ranges, self._mode, files)

    def close_files(self) -> None:
        """Closes the files that stayed open."""
        self._files = None

    def forget(self, path: str) -> None:
        """Closes them if one is that of a path: it was replaced or removed, and would keep its space."""
        if self._files is not None and self._files.has(path):
            self._files = None

    async def read(self, path: str, start: int | None, end: int | None) -> bytes:
        """Reads a file, or a part of it; negative bounds count from its end."""
        loop = asyncio.get_running_loop()
        asked = self._asked.get(loop)
        if asked is None:
            asked = self._asked[loop] = []
            loop.call_soon(self._begin, loop)
        future: asyncio.Future[bytes] = loop.create_future()
        asked.append((path, start, end, future))
        return await future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        # Tasks may have been cancelled since.
        asked = [each for each in self._asked.pop(loop) if not each[3].done()]
        if asked:
            task = loop.create_task(self._read(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, asked: _Asked) -> None:
        try:
            results: Sequence[bytes | BaseException] = await self.batch(each[:3] for each in asked).aread()
        except BaseException as error:
            results = [error] * len(asked)
            if not isinstance(error, Exception):
                for *_, future in asked:
                    future.cancel()
                raise
        for (*_, future), result in zip(asked, results):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def __reduce__(self) -> tuple[Any, ...]:
        return Turns, (self._mode, self._keeps_files)
