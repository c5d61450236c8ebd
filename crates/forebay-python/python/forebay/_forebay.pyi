import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, TypedDict, final, overload

from typing_extensions import Buffer, Self, TypeAlias, disjoint_base

__all__ = [
    "Block",
    "Call",
    "Error",
    "File",
    "Files",
    "Hub",
    "Memory",
    "Scan",
    "__version__",
    "_begin_read_many",
    "allocate",
    "close_at_exit",
    "configure",
    "doctor",
    "parse_header",
    "read_many",
    "slice_ranges",
    "stats",
]
__version__: str

_Out = TypeVar("_Out", bound=Any)
_Path: TypeAlias = str | PathLike[str]

# numpy's stubs call an array a buffer from Python 3.12 on, and tensors of torch are not buffers.
class _Tensor(Protocol):
    def __dlpack_device__(self) -> Any: ...

_Buffer: TypeAlias = Buffer | _Tensor
_Ranges: TypeAlias = Sequence[tuple[int, int]] | Iterable[tuple[int, int]] | _Buffer
_MakeFuture: TypeAlias = Callable[[], asyncio.Future[Any]]

class Error(Exception):
    kind: str

@final
class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Block:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Scan:
    def __iter__(self) -> Self: ...
    def __next__(self) -> memoryview: ...
    def _begin_next(self, hub: Hub, make_future: _MakeFuture) -> Call: ...

@final
class Call:
    @property
    def future(self) -> asyncio.Future[Any] | None: ...
    def result(self) -> Any: ...
    def cancel(self) -> None: ...

@final
class Hub:
    def __new__(cls) -> Self: ...
    def is_here(self) -> bool: ...
    def fileno(self) -> int: ...
    def run(self) -> None: ...
    def __len__(self) -> int: ...

@disjoint_base
class File:
    def __new__(
        cls,
        path: _Path,
        mode: str = "adaptive",
        write: bool = False,
        create: bool = False,
        *,
        truncate: bool = False,
        exclusive: bool = False,
        permissions: int = 0o666,
        background: bool = False,
    ) -> Self: ...
    @property
    def path(self) -> Path: ...
    @property
    def mode(self) -> str: ...
    @property
    def writable(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def close(self) -> None: ...
    def read(self, offset: int, length: int | None = None) -> bytes: ...
    def _begin_read(self, hub: Hub, make_future: _MakeFuture, offset: int, length: int | None = None) -> Call: ...
    def read_into(self, offset: int, buffer: _Buffer) -> int: ...
    def _begin_read_into(self, hub: Hub, make_future: _MakeFuture, offset: int, buffer: _Buffer) -> Call: ...
    @overload
    def read_many(
        self, ranges: _Ranges, out: None = None, *, depth: int | None = None, max_gap: int | None = None
    ) -> list[memoryview]: ...
    @overload
    def read_many(
        self, ranges: _Ranges, out: _Out, *, depth: int | None = None, max_gap: int | None = None
    ) -> _Out: ...
    def _begin_read_many(
        self,
        hub: Hub,
        make_future: _MakeFuture,
        ranges: _Ranges,
        out: Any = None,
        *,
        depth: int | None = None,
        max_gap: int | None = None,
    ) -> Call: ...
    def scan(self, start: int = 0, stop: int | None = None, block: int = 1048576, depth: int | None = None) -> Scan: ...
    def write(self, offset: int, data: _Buffer, durable: bool = False) -> int: ...
    def _begin_write(
        self, hub: Hub, make_future: _MakeFuture, offset: int, data: _Buffer, durable: bool = False
    ) -> Call: ...
    def append(self, data: _Buffer, durable: bool = False) -> int: ...
    def _begin_append(self, hub: Hub, make_future: _MakeFuture, data: _Buffer, durable: bool = False) -> Call: ...
    def sync(self, data_only: bool = False) -> None: ...
    def _begin_sync(self, hub: Hub, make_future: _MakeFuture, data_only: bool = False) -> Call: ...
    def truncate(self, size: int) -> None: ...
    def _arguments(self) -> tuple[Path, str, bool, bool]: ...

@final
class Files:
    def __new__(cls, paths: Sequence[_Path], mode: str = "adaptive") -> Self: ...
    def __len__(self) -> int: ...
    def add(self, path: _Path, device: int, inode: int) -> int: ...
    def read_many(
        self, requests: Iterable[tuple[int, int, int]], *, max_gap: int | None = None
    ) -> list[memoryview]: ...
    def _begin_read_many(
        self, hub: Hub, make_future: _MakeFuture, requests: Iterable[tuple[int, int, int]], *, max_gap: int | None = None
    ) -> Call: ...
    def close(self) -> None: ...

class _Degradation(TypedDict):
    what: str
    why: str
    remedy: str

class _Doctor(TypedDict):
    driver: str
    shards: int
    degraded: list[_Degradation]
    text: str

class _Stats(TypedDict):
    driver: str
    memory: dict[str, int]
    page_cache: dict[str, int]
    devices: list[dict[str, Any]]
    shards: list[dict[str, int]]
    calls_by_waiting_threads: int

def allocate(nbytes: int, *, zeroed: bool = True) -> Memory: ...
def close_at_exit() -> None: ...
def configure(
    *,
    arena_bytes: int | None = None,
    overflow_bytes: int | None = None,
    shards: int | None = None,
    queue_depth: int | None = None,
    driver: Literal["auto", "uring", "threads"] = "auto",
) -> None: ...
def doctor() -> _Doctor: ...
def stats() -> _Stats: ...
@overload
def read_many(
    requests: Iterable[tuple[File, int, int]],
    out: None = None,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> list[memoryview]: ...
@overload
def read_many(
    requests: Iterable[tuple[File, int, int]],
    out: _Out,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> _Out: ...
def _begin_read_many(
    hub: Hub,
    make_future: _MakeFuture,
    requests: Iterable[tuple[File, int, int]],
    out: Any = None,
    *,
    depth: int | None = None,
    max_gap: int | None = None,
) -> Call: ...
def parse_header(
    header: bytes, file_bytes: int
) -> tuple[dict[str, str] | None, list[tuple[str, str, tuple[int, ...], int, int]]]: ...
def slice_ranges(
    dtype: str, shape: Sequence[int], slices: Sequence[int | tuple[int, int, int]]
) -> tuple[list[tuple[int, int]], list[int]]: ...
