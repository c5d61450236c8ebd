"""A store for zarr 3: arrays on local disks, whose chunks are read in batches.

>>> import zarr
>>> from forebay.zarr import ForebayStore
>>> array = zarr.open_array(ForebayStore("/srv/array.zarr"), mode="r")

Writes, listings and removals are those of zarr's LocalStore.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from forebay._batch import Batch, Turns

__all__ = ["ForebayStore"]

# An invalid key, as in LocalStore.
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class ForebayStore(LocalStore):  # type: ignore[misc, unused-ignore]
    """A directory as a store of zarr. The chunks of a shard are one batch of reads, and so are the chunks that the tasks of a loop ask for
    in one turn of it. `read_mode` is the mode of forebay.open.

    Files stay open for later reads, 256 of them or the last batch's: of a file that another program removes or replaces, the space
    is free only when they are closed, as they are by `close` and by removals and replacements of this store's.
    """

    def __init__(self, root: Path | str, *, read_only: bool = False, read_mode: str = "adaptive") -> None:
        super().__init__(root, read_only=read_only)
        self.read_mode = read_mode
        self._turns = Turns(read_mode, keeps_files=True)

    def with_read_only(self, read_only: bool = False) -> ForebayStore:
        """Returns the same store, to read only or to write as well."""
        return type(self)(self.root, read_only=read_only, read_mode=self.read_mode)

    def __repr__(self) -> str:
        return f"ForebayStore('{self}')"

    def close(self) -> None:
        """Closes the store, and the files that stayed open."""
        super().close()
        self._turns.close_files()

    async def set(self, key: str, value: Buffer) -> None:
        """Stores a value."""
        await super().set(key, value)
        self._turns.forget(self._path(key))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Stores a value for a thread that waits."""
        super().set_sync(key, value)
        self._turns.forget(self._path(key))

    async def delete(self, key: str) -> None:
        """Removes a value."""
        await super().delete(key)
        self._turns.close_files()

    def delete_sync(self, key: str) -> None:
        """Removes a value for a thread that waits."""
        super().delete_sync(key)
        self._turns.close_files()

    async def delete_dir(self, prefix: str) -> None:
        """Removes all values below a prefix."""
        await super().delete_dir(prefix)
        self._turns.close_files()

    async def clear(self) -> None:
        """Removes all values."""
        await super().clear()
        self._turns.close_files()

    def _path(self, key: str) -> str:
        return os.fspath(self.root / key)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Returns the value of a key, or a part of it; None without one."""
        start, end = _bounds(byte_range)
        await self._ensure_open()
        try:
            data = await self._turns.read(self._path(key), start, end)
        except _ABSENT:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Returns values, or parts of them, as one batch."""
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **limits: Any,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Yields the parts of one value, read as one batch. The limits are for stores that merge ranges themselves; the engine merges those
        for which it pays on this device."""
        batch = self._parts(key, byte_ranges)
        await self._ensure_open()
        yield _numbered(key, await batch.aread(), prototype)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Returns the value of a key, or a part of it, to a thread that waits."""
        start, end = _bounds(byte_range)
        self._ensure_open_sync()
        (data,) = self._turns.batch([(self._path(key), start, end)]).read()
        if isinstance(data, _ABSENT):
            return None
        if isinstance(data, Exception):
            raise data
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    def get_ranges_sync(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **limits: Any
    ) -> Sequence[tuple[int, Buffer | None]]:
        """Returns the parts of one value, read as one batch, to a thread that waits."""
        batch = self._parts(key, byte_ranges)
        self._ensure_open_sync()
        return _numbered(key, batch.read(), prototype)

    def _parts(self, key: str, byte_ranges: Sequence[ByteRequest | None]) -> Batch:
        path = self._path(key)
        return self._turns.batch((path, *_bounds(byte_range)) for byte_range in byte_ranges)


def _bounds(byte_range: ByteRequest | None) -> tuple[int | None, int | None]:
    """Returns start and end; negative values count from the end of the value."""
    if byte_range is None:
        return None, None
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, byte_range.end
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, None
    if isinstance(byte_range, SuffixByteRequest):
        return (-byte_range.suffix, None) if byte_range.suffix else (0, 0)
    raise TypeError(f"Unexpected byte_range, got {byte_range}.")


def _numbered(
    key: str, results: Sequence[bytes | Exception], prototype: BufferPrototype
) -> list[tuple[int, Buffer | None]]:
    """Numbers the parts, or raises as zarr's own stores do: a group, in which an absent key is FileNotFoundError."""
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise BaseExceptionGroup(
            "parts could not be read",
            [FileNotFoundError(key) if isinstance(error, _ABSENT) else error for error in errors],
        )
    return [(number, prototype.buffer.from_bytes(data)) for number, data in enumerate(results) if isinstance(data, bytes)]
