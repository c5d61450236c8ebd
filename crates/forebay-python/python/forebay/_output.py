"""New files, which replace old files once they are whole and durable."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import forebay
from forebay._calls import Calls
from forebay._forebay import Call

__all__ = ["Output", "synced_folder"]

# Each write is one operation of the core, which continues without a poll.
_CHUNK_BYTES = 8 << 20
# Writes under way, while the next chunk is filled.
_DEPTH = 3


class Output:
    """A file object to write a new file from front to back. The end of its `with` block makes the bytes durable and replaces the
    old file at `path`; an exception in the block, or a failed write, leaves the old file unchanged.

    Only a regular file is replaced, and the new file gets its mode; otherwise the file is created with the umask.

    A process that is killed within the block leaves the new bytes in a file `.forebay-*.tmp` next to `path`.
    It uses at most `_CHUNK_BYTES * (_DEPTH + 1)` bytes of memory.
    """

    def __init__(self, path: str | os.PathLike[str], background: bool = True) -> None:
        # A link stays one.
        self._path = os.path.realpath(path)
        self._mode = self._old_mode()
        self._calls = Calls()
        self._writes: deque[tuple[Call, memoryview]] = deque()
        self._chunk = memoryview(forebay.allocate(_CHUNK_BYTES, zeroed=False))
        self._filled = 0
        # Of the chunk in the file.
        self._begin = 0
        self._temporary = os.path.join(os.path.dirname(self._path), f".forebay-{secrets.token_hex(8)}.tmp")
        self._file = forebay.open(
            self._temporary,
            # The writes are direct if the file system supports that.
            "adaptive",
            write=True,
            create=True,
            exclusive=True,
            # The old file may keep its bytes from others.
            permissions=0o666 if self._mode is None else 0o600,
            background=background,
        )

    def tell(self) -> int:
        """Returns the number of bytes that were written."""
        return self._begin + self._filled

    def write(self, data: Any) -> int:
        """Writes all bytes of a buffer, which may be changed afterwards. Returns their number."""
        view = memoryview(data)
        # A view without bytes may have a shape that no cast accepts.
        rest = view.cast("B") if view.nbytes else memoryview(b"")
        while rest:
            part = rest[: _CHUNK_BYTES - self._filled]
            self._chunk[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rest = rest[len(part) :]
            if self._filled == _CHUNK_BYTES:
                self._begin_write()
        return view.nbytes

    def flush(self) -> None:
        """Nothing: the end of the block does."""

    def close(self) -> None:
        """Nothing: the end of the block does."""

    def _begin_write(self) -> None:
        chunk = self._chunk
        call = self._calls.begin(self._file._begin_write, self._begin, chunk[: self._filled])
        self._writes.append((call, chunk))
        self._begin += self._filled
        self._filled = 0
        if len(self._writes) <= _DEPTH:
            self._chunk = memoryview(forebay.allocate(_CHUNK_BYTES, zeroed=False))
        else:
            self._chunk = self._end_write()

    def _end_write(self) -> memoryview:
        """Waits for the oldest write; returns its memory."""
        call, chunk = self._writes[0]
        self._calls.end(call)
        self._writes.popleft()
        return chunk

    def _old_mode(self) -> int | None:
        """Returns the mode of the file that is to be replaced, if it exists."""
        try:
            mode = os.stat(self._path).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        if not stat.S_ISREG(mode):
            text = "a device, a pipe or a socket has this name, and only a regular file is replaced; choose another name"
            raise FileExistsError(errno.EEXIST, text, self._path)
        return stat.S_IMODE(mode)

    def _take_place(self) -> None:
        if self._filled:
            self._begin_write()
        while self._writes:
            self._end_write()
        mode = self._old_mode()
        mode = self._mode if mode is None else mode
        if mode is not None:
            os.chmod(self._temporary, mode)
        self._file.sync()
        with synced_folder(os.path.dirname(self._path)):
            os.replace(self._temporary, self._path)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._take_place()
        finally:
            for call, _ in self._writes:
                call.cancel()
            try:
                self._file.close()
            finally:
                # It no longer exists once it has replaced the old file.
                with suppress(FileNotFoundError):
                    os.unlink(self._temporary)


@contextmanager
def synced_folder(path: str | os.PathLike[str]) -> Iterator[None]:
    """Makes the names in a folder durable at the block's end. Without a descriptor for that, the block is not begun."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
