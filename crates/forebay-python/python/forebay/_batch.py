"""Ranges of files by their paths, read as one batch: for fsspec and zarr."""

from __future__ import annotations

import asyncio
import os
import stat
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, cast

import forebay
from forebay._aio import end as end_of
from forebay._aio import place
from forebay._forebay import Files

__all__ = ["Batch", "Turns", "open_to_read", "read_file"]

# Ranges from here on are read by themselves, into their bytes: a batch has its bytes twice for a moment.
_LONG_BYTES = 4 << 20
# Of these on a loop together, each with an open file.
_LONG_READS = 16


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
    """Returns the bounds of a range, of which negative numbers count from the end of the file."""
    start = 0 if start is None else max(start + size, 0) if start < 0 else start
    end = size if end is None else end + size if end < 0 else min(end, size)
    return start, end


def _size(path: str, mode: str) -> int:
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    with open_to_read(path, mode) as file:
        return file.size


class Batch:
    """Ranges of files, each of a path, a start and an end. One that ends behind the end of its file is cut there, and one that cannot be
    read gives its exception in place of its bytes."""

    def __init__(self, ranges: Iterable[tuple[str, int | None, int | None]], mode: str) -> None:
        self._mode = mode
        self._results: list[bytes | Exception] = []
        self._numbers: dict[str, int] = {}
        # Of those that are left to read: a file's number, offset and length; and the places of their results.
        self._requests: list[tuple[int, int, int]] = []
        self._places: list[int] = []
        # Long ranges: the place of the result, path, start and end.
        self._long: list[tuple[int, str, int, int]] = []
        sizes: dict[str, int | Exception] = {}
        for number, (path, start, end) in enumerate(ranges):
            if path not in sizes:
                try:
                    sizes[path] = _size(path, mode)
                except (OSError, ValueError) as error:
                    sizes[path] = error
            size = sizes[path]
            if isinstance(size, Exception):
                self._results.append(size)
                continue
            if size == 0 and not start and end is None:
                # A size of 0 may say nothing, as that of a file of /proc.
                self._results.append(self._read_one(path, None, None))
                continue
            self._results.append(b"")
            start, end = _bounds(size, start, end)
            if end - start >= _LONG_BYTES:
                self._long.append((number, path, start, end))
            elif end > start:
                self._requests.append((self._numbers.setdefault(path, len(self._numbers)), start, end - start))
                self._places.append(number)

    def read(self, max_gap: int | None = None) -> list[bytes | Exception]:
        """Reads them."""
        try:
            files = Files(list(self._numbers), self._mode)
            try:
                self._take(files.read_many(self._requests, max_gap=max_gap))
            finally:
                files.close()
        except (OSError, EOFError):
            self._read_each()
        for number, path, start, end in self._long:
            self._results[number] = self._read_one(path, start, end)
        return self._results

    async def aread(self, max_gap: int | None = None) -> list[bytes | Exception]:
        """Reads them on an asyncio loop."""
        turn = asyncio.Semaphore(_LONG_READS)
        await asyncio.gather(self._aread_short(max_gap), *(self._aread_long(turn, *each) for each in self._long))
        return self._results

    async def _aread_long(self, turn: asyncio.Semaphore, number: int, path: str, start: int, end: int) -> None:
        async with turn:
            try:
                with open_to_read(path, self._mode) as file:
                    self._results[number] = await file.aread(start, end - start)
            except (OSError, MemoryError) as error:
                self._results[number] = error

    async def _aread_short(self, max_gap: int | None) -> None:
        try:
            files = Files(list(self._numbers), self._mode)
            try:
                self._take(await end_of(files._begin_read_many(*place(), self._requests, max_gap=max_gap)))
            finally:
                files.close()
        except (OSError, EOFError):
            await asyncio.to_thread(self._read_each)

    def _take(self, views: Sequence[memoryview]) -> None:
        for number, view in zip(self._places, views):
            self._results[number] = bytes(view)

    def _read_each(self) -> None:
        """Reads one by one, so that each failure is that of its range."""
        paths = list(self._numbers)
        for number, (file, start, length) in zip(self._places, self._requests):
            self._results[number] = self._read_one(paths[file], start, start + length)

    def _read_one(self, path: str, start: int | None, end: int | None) -> bytes | Exception:
        try:
            return read_file(path, start, end, self._mode)
        except (OSError, MemoryError) as error:
            return error


_Asked = list[tuple[str, "int | None", "int | None", "asyncio.Future[bytes]"]]


class Turns:
    """Reads of the tasks of asyncio loops: reads that start in one turn of a loop are one batch."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._asked: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Asked] = weakref.WeakKeyDictionary()
        # A loop keeps its tasks by weak references.
        self._tasks: set[asyncio.Task[None]] = set()

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
            results: Sequence[bytes | BaseException] = await Batch((each[:3] for each in asked), self._mode).aread()
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
        return Turns, (self._mode,)
