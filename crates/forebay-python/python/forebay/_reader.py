"""A file as a file object of the standard library: with a position, and reads ahead of it."""

from __future__ import annotations

import errno
import io
import operator
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay._file import File

__all__ = ["Reader"]

# The first read at a new place: a header, a directory of an archive, most small files.
_FIRST_BYTES = 64 << 10
# From this size on a read is made directly into its destination; the core has all of it in flight.
_DIRECT_BYTES = 4 << 20
_PEEK_BYTES = 8 << 10
_LINE_BYTES = 512
# Blocks in flight ahead of the position.
_DEPTH = 4


class Reader(io.RawIOBase):
    """A file object to read, made by File.io: for numpy.load, zipfile, tarfile, pickle, torch.load, PIL and others.

    The first read at a place reads 64 KiB there. For sequential reads, blocks of `block_size` bytes are in flight ahead of them;
    reads of 4 MiB and more are passed to the device unchanged. A read returns fewer bytes only at the file's end. Lines are read
    much faster through io.BufferedReader(file).

    Bytes that are written meanwhile may not be seen if they were read ahead. One thread uses it at a time. It has no `fileno`, as the
    descriptor of a file may need aligned memory. Closing it leaves the File open, unless nothing else refers to it.
    """

    def __init__(self, file: File, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self._file: File | None = file
        self._block_size = max(block_size, 4096)
        self._position = 0
        self._forget()

    def _forget(self) -> None:
        """Drops the bytes that were read ahead."""
        # The bytes that lie ready, from `_begin` on.
        self._ready = memoryview(b"")
        self._begin = 0
        self._scan: Iterator[memoryview] | None = None
        self._process = os.getpid()

    def _open_file(self) -> File:
        if self._file is None:
            raise ValueError("I/O operation on a closed file")
        return self._file

    def _has(self, position: int) -> bool:
        """Returns whether the byte at a position lies ready."""
        if self._process != os.getpid():
            # A forked child does not inherit I/O memory.
            self._forget()
        return self._begin <= position < self._begin + len(self._ready)

    def _part(self, position: int, size: int) -> memoryview | bytes:
        """Returns bytes at a position, at most `size`; empty at the end."""
        file = self._open_file()
        if not self._has(position):
            if size >= _DIRECT_BYTES:
                return file.read(position, size)
            self._read_ahead(file, position)
        skip = position - self._begin
        return self._ready[skip : skip + size]

    def _read_ahead(self, file: File, position: int) -> None:
        """Prepares bytes at a position; empty at the end."""
        length = len(self._ready)
        end = self._begin + length
        # As one reads on, or steps over a little.
        is_next = length > 0 and end <= position <= end + length
        if not is_next:
            self._scan = None
            self._ready = memoryview(file.read(position, min(_FIRST_BYTES, self._block_size)))
            self._begin = position
            return
        # A scan that failed, or whose wait was ended by a signal, may not continue with the next byte.
        scan, self._scan = self._scan, None
        if scan is None:
            if not 0 < file.size <= position:
                scan = iter(file.scan(position, block=self._block_size, depth=_DEPTH))
            end = position
        for block in scan or ():
            self._ready, self._begin = block, end
            end += len(block)
            if position < end:
                self._scan = scan
                return
        self._ready, self._begin = memoryview(b""), position

    # Each moves the position at its end, so that a call that failed has read nothing.

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns the next `size` bytes, fewer at the end, or all that follow."""
        # Numbers of numpy have their own sums.
        size = -1 if size is None else operator.index(size)
        if size < 0:
            return self.readall()
        self._open_file()
        position, parts = self._position, []
        while size > 0 and (part := self._part(position, size)):
            parts.append(part)
            position += len(part)
            size -= len(part)
        self._position = position
        return b"".join(parts)

    def readall(self) -> bytes:
        """Returns all bytes up to the end."""
        file, position = self._open_file(), self._position
        first = self._part(position, len(self._ready)) if self._has(position) else b""
        rest = file.read(position + len(first))
        self._position = position + len(first) + len(rest)
        return b"".join((first, rest))

    def readinto(self, buffer: Any, /) -> int:
        """Fills a writable buffer; returns the number of bytes, fewer than it has at the end."""
        file, view, done = self._open_file(), memoryview(buffer), 0
        if view.nbytes == 0:
            return 0
        view = view.cast("B")
        while done < len(view):
            position, rest = self._position + done, view[done:]
            if len(rest) >= _DIRECT_BYTES and not self._has(position):
                count = file.read_into(position, rest)
            else:
                part = self._part(position, len(rest))
                count = len(part)
                rest[:count] = part
            if count == 0:
                break
            done += count
        self._position += done
        return done

    def readline(self, size: int | None = -1, /) -> bytes:
        """Returns the bytes up to the next line feed, with it; at most `size`."""
        self._open_file()
        # That of io.RawIOBase returns more than `size` where what lies ready ends within the line.
        left = sys.maxsize if size is None or size < 0 else operator.index(size)
        position, parts, is_whole = self._position, [], False
        while not is_whole and left > 0 and (part := bytes(self._part(position, min(left, _LINE_BYTES)))):
            end = part.find(b"\n") + 1
            is_whole = end > 0
            part = part[:end] if is_whole else part
            parts.append(part)
            position += len(part)
            left -= len(part)
        self._position = position
        return b"".join(parts)

    def peek(self, size: int = 0, /) -> bytes:
        """Returns next bytes and stays where it is: one at least except at the end, perhaps fewer than `size`, perhaps more."""
        return bytes(self._part(self._position, min(max(size, _PEEK_BYTES), _DIRECT_BYTES - 1)))

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Moves the position: from the start, from where it is (1), or from the end (2). Returns it."""
        file = self._open_file()
        if whence not in (0, 1, 2):
            raise ValueError(f"whence is {whence}; use 0, 1 or 2")
        position = (0, self._position, file.size if whence == 2 else 0)[whence] + operator.index(offset)
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        self._position = position
        return position

    def tell(self) -> int:
        """Returns the position."""
        self._open_file()
        return self._position

    def readable(self) -> bool:
        """True: it reads."""
        self._open_file()
        return True

    def seekable(self) -> bool:
        """True: it has a position."""
        self._open_file()
        return True

    @property
    def name(self) -> str:
        """The path of the file."""
        return os.fspath(self._open_file().path)

    @property
    def mode(self) -> str:
        """How it is open."""
        return "rb"

    def close(self) -> None:
        """Closes this object. Closing it again does nothing."""
        self._file = None
        self._forget()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._open_file(), self._block_size, self._position)


def _reopen(file: File, block_size: int, position: int) -> Reader:
    reader = Reader(file, block_size)
    reader.seek(position)
    return reader
