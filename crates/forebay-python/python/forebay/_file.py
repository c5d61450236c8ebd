"""Files, with calls for asyncio and calls that wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from forebay import _forebay
from forebay._aio import end, place
from forebay._forebay import _begin_read_many, read_many
from forebay._reader import Reader

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from forebay._forebay import _Buffer, _Ranges

    Out = TypeVar("Out")

    Mode = Literal["adaptive", "direct", "buffered", "uncached"]

__all__ = ["File", "aread_many", "open", "read_many"]


class File(_forebay.File):
    """An open file, made by forebay.open.

    Any thread may make any call, several at a time. Calls that wait release the interpreter meanwhile, and Ctrl-C ends
    them. Their variants with the prefix `a` are for asyncio.

    A buffer that is read into stays exported until the kernel is done with it, also after a call that ended early: until then
    Python neither resizes nor frees it.

    In a forked child the file opens itself again at its first use, by its inherited descriptor, so it stays the same file
    although its path was replaced or removed. Pickled, it is opened again by its path.
    """

    __slots__ = ()

    async def aread(self, offset: int, length: int | None = None) -> bytes:
        """Returns the bytes at `offset`, as `read` does."""
        data: bytes = await end(self._begin_read(*place(), offset, length))
        return data

    async def aread_into(self, offset: int, buffer: _Buffer) -> int:
        """Reads into a writable buffer, as `read_into` does."""
        count: int = await end(self._begin_read_into(*place(), offset, buffer))
        return count

    @overload
    async def aread_many(
        self, ranges: _Ranges, out: None = None, *, depth: int | None = None, max_gap: int | None = None
    ) -> list[memoryview]: ...

    @overload
    async def aread_many(
        self, ranges: _Ranges, out: Out, *, depth: int | None = None, max_gap: int | None = None
    ) -> Out: ...

    async def aread_many(
        self, ranges: _Ranges, out: Any = None, *, depth: int | None = None, max_gap: int | None = None
    ) -> Any:
        """Reads many ranges as one batch, as `read_many` does."""
        value = await end(self._begin_read_many(*place(), ranges, out, depth=depth, max_gap=max_gap))
        return value if out is None else out

    async def awrite(self, offset: int, data: _Buffer, durable: bool = False) -> int:
        """Writes all of `data` at `offset`, as `write` does."""
        count: int = await end(self._begin_write(*place(), offset, data, durable))
        return count

    async def aappend(self, data: _Buffer, durable: bool = False) -> int:
        """Writes all of `data` behind the last byte, as `append` does."""
        offset: int = await end(self._begin_append(*place(), data, durable))
        return offset

    async def afsync(self, data_only: bool = False) -> None:
        """Makes all writes that have returned durable, as `sync` does."""
        await end(self._begin_sync(*place(), data_only))

    async def ascan(
        self, start: int = 0, stop: int | None = None, block: int = 1 << 20, depth: int | None = None
    ) -> AsyncIterator[memoryview]:
        """Yields the blocks of the file from front to back, as `scan` does: `async for block in file.ascan()`."""
        scan = self.scan(start, stop, block, depth)
        while True:
            try:
                view: memoryview = await end(scan._begin_next(*place()))
            except StopAsyncIteration:
                return
            yield view

    def io(self, block_size: int = 1 << 20) -> Reader:
        """Returns a file object over the file (io.RawIOBase), to read: for numpy.load, zipfile, tarfile, pickle, torch.load, PIL.

        It has its own position, which starts at 0, and reads ahead in blocks of `block_size` bytes for sequential reads. Closing it
        leaves the file open; `with forebay.open(path).io() as stream` closes both, as nothing else refers to the file then.
        """
        return Reader(self, block_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._arguments()


def _reopen(path: os.PathLike[str], mode: Mode, write: bool, background: bool) -> File:
    return open(path, mode, write, background=background)


def open(
    path: str | os.PathLike[str],
    mode: Mode = "adaptive",
    write: bool = False,
    create: bool = False,
    *,
    truncate: bool = False,
    exclusive: bool = False,
    permissions: int = 0o666,
    background: bool = False,
) -> File:
    """Opens a file, to read, or with `write` to read and write.

    `mode` selects the source of the bytes: "adaptive" reads cached bytes from the page cache, bypasses it for all others, and
    caches bytes that are read again while memory is free, "direct" bypasses it, "buffered" uses it, "uncached" uses it and leaves
    nothing there.

    `create` makes a file that does not exist, `exclusive` fails where one does, `truncate` empties it; all need `write`.
    `permissions` are those of a new file, before the umask; its writes here need no right to write.
    The reads and writes of a `background` file give way to those of other files of the process on the same device.

    Raises FileNotFoundError, PermissionError and the other kinds of OSError; ValueError for arguments that do not fit.
    """
    return File(
        path,
        mode,
        write,
        create,
        truncate=truncate,
        exclusive=exclusive,
        permissions=permissions,
        background=background,
    )


@overload
async def aread_many(
    requests: Iterable[tuple[_forebay.File, int, int]],
    out: None = None,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> list[memoryview]: ...


@overload
async def aread_many(
    requests: Iterable[tuple[_forebay.File, int, int]],
    out: Out,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> Out: ...


async def aread_many(
    requests: Iterable[tuple[_forebay.File, int, int]],
    out: Any = None,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> Any:
    """Reads ranges of several files as one batch, as `read_many` does."""
    value = await end(_begin_read_many(*place(), requests, out, depth=depth, max_gap=max_gap))
    return value if out is None else out
