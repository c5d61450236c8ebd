"""Tensors of safetensors files, read as one batch for a file instead of through a memory map.

>>> from forebay.safetensors import load_file, safe_open
>>> weights = load_file("model.safetensors", framework="np")        # or "pt"
>>> with safe_open("model.safetensors", framework="np") as file:
...     bias = file.get_tensor("bias")
...     rows = file.get_slice("embedding")[1000:2000]

A file is accepted if the crate safetensors accepts it: its header is checked before any tensor is read.
"""

from __future__ import annotations

import math
import operator
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import forebay
from forebay._calls import Calls
from forebay._forebay import Call, parse_header, slice_ranges
from forebay.safetensors._device import read_to_device
from forebay.safetensors._dtypes import HEADER_BYTES_MAX, ML_DTYPES, NUMPY, TORCH
from forebay.safetensors._save import save_file

__all__ = ["SafeOpen", "SafetensorError", "TensorSlice", "load_file", "safe_open", "save_file", "stream_files"]

# The first read has the whole header of most files.
_FIRST_READ_BYTES = 256 << 10
_PAGE = 4096
# Tensors of a stream that are read together, and the bytes that one call reads.
_GROUP_BYTES = 8 << 20
_CALL_BYTES = 4 << 20
# Files of which a stream may read all tensors ahead: each is open until its last tensor was yielded.
_FILES_AHEAD = 8


class SafetensorError(ValueError):
    """A file is not a valid safetensors file, or it is closed."""


class _Info:
    __slots__ = ("begin", "dtype", "end", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], begin: int, end: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.begin = begin
        self.end = end

    def is_aligned(self, place: int) -> bool:
        """Returns whether its elements may start at this place of memory."""
        # No element is longer than 8 bytes; those of half a byte may start anywhere.
        return place % 8 == 0 or place % max((self.end - self.begin) // max(math.prod(self.shape), 1), 1) == 0


class _Numpy:
    """Arrays of numpy."""

    def __init__(self, device: str | int | None) -> None:
        import numpy

        if device not in (None, "cpu"):
            raise ValueError(f"device is {device!r}; arrays of numpy are on the device \"cpu\"")
        self.numpy = numpy
        self._dtypes: dict[str, Any] = {}

    def dtype(self, name: str) -> Any:
        dtype = self._dtypes.get(name)
        if dtype is None:
            dtype = self._dtypes[name] = self._find_dtype(name)
        return dtype

    def _find_dtype(self, name: str) -> Any:
        if name in NUMPY:
            return self.numpy.dtype(NUMPY[name])
        if name in ML_DTYPES:
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError(
                    f"numpy has no type for {name}; install the package ml_dtypes, or use framework=\"pt\""
                ) from None
            return self.numpy.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
        raise TypeError(f"numpy has no type for {name}")

    def tensor(self, memory: Any, offset: int, info_dtype: str, shape: Sequence[int], nbytes: int) -> Any:
        dtype = self.dtype(info_dtype)
        if nbytes == 0:
            return self.numpy.empty(tuple(shape), dtype)
        array = self.numpy.ndarray(shape, dtype, memory, offset)
        # A file may put a tensor at any byte, and so may memory of the caller.
        return array if array.flags.aligned else array.copy()


class _Torch:
    """Tensors of torch."""

    def __init__(self, device: str | int | None) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cpu" if device is None else device)

    def dtype(self, name: str) -> Any:
        dtype = getattr(self.torch, TORCH.get(name, ""), None)
        if dtype is None:
            raise TypeError(f"this version of torch has no type for {name}")
        return dtype

    def shape(self, info_dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
        # Two elements of torch's type of 4 bits are one byte.
        return (*shape[:-1], shape[-1] // 2) if info_dtype == "F4" else tuple(shape)

    def on_device(self, file: forebay.File, infos: Sequence[_Info]) -> list[Any]:
        """Reads the tensors of a file, in its order, into the memory of a CUDA device."""
        dtypes = [self.dtype(info.dtype) for info in infos]
        parts = read_to_device(file, [(info.begin, info.end) for info in infos], self.torch, self.device)
        return [
            part.view(dtype).reshape(self.shape(info.dtype, info.shape)) for part, dtype, info in zip(parts, dtypes, infos)
        ]

    def tensor(self, memory: Any, offset: int, info_dtype: str, shape: Sequence[int], nbytes: int) -> Any:
        dtype = self.dtype(info_dtype)
        shape = self.shape(info_dtype, shape)
        if nbytes == 0:
            return self.torch.empty(shape, dtype=dtype, device=self.device)
        item = self.torch.empty((), dtype=dtype).element_size()
        if offset % item:
            # Tensors must start at a multiple of their elements.
            memory, offset = bytearray(memoryview(memory)[offset : offset + nbytes]), 0
        flat = self.torch.frombuffer(memory, dtype=dtype, count=nbytes // item, offset=offset)
        if flat.data_ptr() % item:
            flat = flat.clone()
        return flat.reshape(shape).to(self.device)


def _framework(name: str, device: str | int | None) -> _Numpy | _Torch:
    if name in ("np", "numpy"):
        return _Numpy(device)
    if name in ("pt", "torch", "pytorch"):
        return _Torch(device)
    raise ValueError(f"framework is {name!r}; use \"np\" or \"pt\"")


class SafeOpen:
    """An open safetensors file, whose tensors are read one by one; made by safe_open."""

    def __init__(self, filename: str | os.PathLike[str], framework: str, device: str | int | None = "cpu") -> None:
        self._framework = _framework(framework, device)
        self._file = forebay.open(filename)
        try:
            self._size = self._file.size
            self._metadata, self._tensors = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[dict[str, str] | None, dict[str, _Info]]:
        first = self._file.read(0, min(_FIRST_READ_BYTES, self._size))
        if len(first) < 8:
            raise self._refusal(f"it has {len(first)} bytes")
        (length,) = struct.unpack("<Q", first[:8])
        if length > HEADER_BYTES_MAX:
            raise self._refusal(f"its header would have {length} bytes, and {HEADER_BYTES_MAX} are allowed")
        if length + 8 > self._size:
            raise self._refusal(f"its header would have {length} bytes, and the file has {self._size}")
        header = first[8 : 8 + length] if 8 + length <= len(first) else self._file.read(8, length)
        try:
            metadata, tensors = parse_header(header, self._size)
        except ValueError as error:
            raise self._refusal(str(error)) from None
        return metadata, {name: _Info(dtype, shape, begin, end) for name, dtype, shape, begin, end in tensors}

    def _refusal(self, why: str) -> SafetensorError:
        return SafetensorError(f"{self._file.path} is no valid safetensors file: {why}")

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Tensors that were read stay."""
        self._file.close()

    def _open_tensors(self) -> dict[str, _Info]:
        if self._file.closed:
            raise SafetensorError(f"{self._file.path} is closed; open it again")
        return self._tensors

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted. Raises SafetensorError once the file is closed, as all methods do."""
        return sorted(self._open_tensors())

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors in the order of the file."""
        return list(self._open_tensors())

    def metadata(self) -> dict[str, str] | None:
        """Returns the texts that were saved with the tensors; None without any."""
        self._open_tensors()
        return self._metadata

    def _info(self, name: str) -> _Info:
        try:
            return self._open_tensors()[name]
        except KeyError:
            raise KeyError(f"{self._file.path} has no tensor {name!r}") from None

    def _skip(self, begin: int, infos: Iterable[_Info]) -> int:
        """Returns the place in memory of the bytes of the file from `begin` on, which have these tensors."""
        # Memory and file are aligned alike, so that the device writes into its place; tensors that the file has at any byte, as behind a
        # header of any length, start with the memory.
        return begin % _PAGE if all(info.is_aligned(info.begin) for info in infos) else 0

    def _read(self, begin: int, end: int, skip: int, out: Any = None) -> Any:
        """Reads bytes of the file into `out`, or new memory, from `skip` on. Returns it."""
        memory = self._room(skip + end - begin, out)
        if self._file.read_into(begin, memoryview(memory)[skip : skip + end - begin]) != end - begin:
            raise ValueError(f"{self._file.path} became shorter while it was read")
        return memory

    def _room(self, nbytes: int, out: Any) -> Any:
        if out is None:
            return forebay.allocate(nbytes, zeroed=False)
        room = memoryview(out).cast("B")
        if room.nbytes < nbytes:
            raise ValueError(f"out has {room.nbytes} bytes; these tensors of {self._file.path} need {nbytes}")
        return room

    def _places(self, infos: Sequence[_Info]) -> tuple[list[int], int]:
        """Returns the start of each of these tensors in one piece of memory, and the length of that memory."""
        places, total = [], 0
        for info in infos:
            # An element of any type may start at a multiple of 16.
            total += -total % 16
            places.append(total)
            total += info.end - info.begin
        return places, total

    def _span(self) -> tuple[int, int, int]:
        """Returns the start and the end of all tensors in the file, and their start in memory."""
        infos = self._open_tensors().values()
        begin = min((info.begin for info in infos), default=0)
        return begin, max((info.end for info in infos), default=0), self._skip(begin, infos)

    def nbytes(self, names: Sequence[str] | None = None) -> int:
        """Returns the length of the memory that `get_tensors` needs for these tensors, or for all of them: of their bytes, and some for
        their alignment."""
        if names is None:
            begin, end, skip = self._span()
            return skip + end - begin
        return self._places([self._info(name) for name in names])[1]

    def get_tensor(self, name: str) -> Any:
        """Reads one tensor."""
        info = self._info(name)
        skip = self._skip(info.begin, [info])
        memory = self._read(info.begin, info.end, skip)
        return self._framework.tensor(memory, skip, info.dtype, info.shape, info.end - info.begin)

    def get_slice(self, name: str) -> TensorSlice:
        """Returns a tensor that reads only those of its parts that it is indexed with."""
        return TensorSlice(self, self._info(name))

    def get_tensors(self, names: Sequence[str] | None = None, out: Any = None) -> dict[str, Any]:
        """Reads several tensors, or all, as one batch. They share one piece of memory.

        That is `out`, if it is given: any writable, contiguous buffer of at least `nbytes(names)` bytes, such as the memory of a model that
        is no longer used, or the array of a pinned tensor (`tensor.numpy()`). Memory that starts at a page, such as that of
        `forebay.allocate`, is read into without a copy; new memory may be slower to allocate than to fill. Raises ValueError if
        `out` is too short.

        Elements lie at multiples of their length: a tensor for which that is not so in the shared memory is a copy. On a CUDA device
        all tensors without `out` have separate memory, and come through 128 MiB of pinned memory.
        """
        infos = [(name, self._info(name)) for name in (self._open_tensors() if names is None else names)]
        framework = self._framework
        if infos and names is None and out is None and isinstance(framework, _Torch) and framework.device.type == "cuda":
            tensors = framework.on_device(self._file, [info for _, info in infos])
            return {name: tensor for (name, _), tensor in zip(infos, tensors)}
        if names is None:
            begin, end, skip = self._span()
            memory = self._read(begin, end, skip, out)
            places = [skip + info.begin - begin for _, info in infos]
        else:
            places, total = self._places([info for _, info in infos])
            memory = self._room(total, out)
            view = memoryview(memory)[:total]
            ranges = [(info.begin, info.end - info.begin) for _, info in infos]
            if sum(length for _, length in ranges) == total:
                self._file.read_many(ranges, view)
            else:
                for place, part in zip(places, self._file.read_many(ranges)):
                    view[place : place + len(part)] = part
        return {
            name: framework.tensor(memory, place, info.dtype, info.shape, info.end - info.begin)
            for (name, info), place in zip(infos, places)
        }


class TensorSlice:
    """A tensor in a file, of which an index reads a part: one batch for the rows that it needs."""

    def __init__(self, file: SafeOpen, info: _Info) -> None:
        self._owner = file
        self._info = info

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Returns the type of the elements by its name in the file, such as "F32"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        info = self._info
        if isinstance(index, list):
            if index:
                raise IndexError("a tensor in a file has no list as an index; use slices, or read it and index it then")
            index = slice(0, 0)
        slices: list[int | tuple[int, int, int]] = []
        shape: list[int] = []
        for dimension, part in enumerate(_expand(index, len(info.shape))):
            size = info.shape[dimension]
            if isinstance(part, slice):
                start, stop, step = part.indices(size)
                if step < 0:
                    raise ValueError("the step of a slice must be positive")
                count = len(range(start, stop, step))
                shape.append(count)
                slices.append((start, stop, step))
            else:
                number = operator.index(part)
                if not -size <= number < size:
                    raise IndexError(f"index {number} is out of range for a dimension of {size}")
                slices.append(number % size)
        framework = self._owner._framework
        if 0 in shape or 0 in info.shape:
            return framework.tensor(b"", 0, info.dtype, shape, 0)
        ranges, shape = slice_ranges(info.dtype, info.shape, slices)
        shape = shape if isinstance(shape, list) else list(shape)
        if len(ranges) == 1:
            offset, length = ranges[0]
            begin = info.begin + offset
            skip = self._owner._skip(begin, [info])
            memory = self._owner._read(begin, begin + length, skip)
            return framework.tensor(memory, skip, info.dtype, shape, length)
        total = sum(length for _, length in ranges)
        memory = forebay.allocate(total, zeroed=False)
        self._owner._file.read_many([(info.begin + offset, length) for offset, length in ranges], memory)
        return framework.tensor(memory, 0, info.dtype, shape, total)


def _expand(index: Any, dimensions: int) -> list[Any]:
    parts = list(index) if isinstance(index, tuple) else [index]
    if parts.count(Ellipsis) > 1:
        raise IndexError("an index has one ellipsis at most")
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        parts[place : place + 1] = [slice(None)] * (dimensions - len(parts) + 1)
    if len(parts) > dimensions:
        raise IndexError(f"the tensor has {dimensions} dimensions, and {len(parts)} were indexed")
    return parts + [slice(None)] * (dimensions - len(parts))


def _check_backend(backend: str | None) -> None:
    if backend not in (None, "mmap", "pread"):
        raise ValueError(f"backend is {backend!r}; it is accepted as safetensors has it, and Forebay reads in its own way")


def safe_open(
    filename: str | os.PathLike[str],
    framework: str = "np",
    device: str | int | None = "cpu",
    *,
    backend: str | None = None,
) -> SafeOpen:
    """Opens a safetensors file for single tensors. `framework` is "np" (numpy) or "pt" (torch).

    `backend` changes nothing: it is there for programs that pass it to the package safetensors.
    """
    _check_backend(backend)
    return SafeOpen(filename, framework, device)


def load_file(
    filename: str | os.PathLike[str],
    device: str | int | None = "cpu",
    *,
    framework: str | None = None,
    out: Any = None,
    backend: str | None = None,
) -> dict[str, Any]:
    """Reads all tensors of a file together, into one piece of memory that they share; on a CUDA device each has its own.

    `framework` is "np" (numpy) or "pt" (torch). The default is torch if the program has imported it or requests another device
    than "cpu", else numpy. `out` is memory to read into, as for `SafeOpen.get_tensors`; as many bytes as the file has, and 4,096 more,
    are enough. `backend` is as for `safe_open`. Raises SafetensorError, a ValueError, for a file that is not valid.
    """
    _check_backend(backend)
    with SafeOpen(filename, framework or _default_framework(device), device) as file:
        return file.get_tensors(out=out)


def _default_framework(device: str | int | None) -> str:
    return "pt" if "torch" in sys.modules or device not in (None, "cpu") else "np"


def stream_files(
    filenames: Iterable[str | os.PathLike[str]],
    device: str | int | None = "cpu",
    *,
    framework: str | None = None,
    ahead_bytes: int = 256 << 20,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields the names and tensors of several files, such as the parts of a model, one file after the other.

    The tensors after the yielded tensor are read meanwhile, also those of the next files: up to `ahead_bytes` of a few files, and at
    least one tensor. Adjacent tensors share memory of up to 8 MiB, and longer tensors have their own: the program's memory stays
    small if it copies each tensor and drops it. `progress` is called before each tensor, with the bytes of the files up to its end
    and those of all files. `device` and `framework` are as for `load_file`.

    Raises OSError at the call for a file that does not exist. Any other error is raised as by `load_file`, after all tensors before it:
    for a file that is not valid, after those of the files before it. Closing the iterator drops the tensors that are read ahead.
    """
    paths = [os.fspath(filename) for filename in filenames]
    total = sum(os.path.getsize(path) for path in paths)
    files = (SafeOpen(path, framework or _default_framework(device), device) for path in paths)
    return _stream(files, total, ahead_bytes, progress)


class _Group:
    """Tensors side by side in a file, which are read together."""

    def __init__(self, file: SafeOpen, tensors: list[tuple[str, _Info]], is_last: bool) -> None:
        self.file = file
        self.tensors = tensors
        self.is_last = is_last
        self.begin = tensors[0][1].begin if tensors else 0
        self.nbytes = tensors[-1][1].end - self.begin if tensors else 0
        self.calls: list[Call] = []

    def begin_read(self, calls: Calls) -> None:
        self.skip = self.file._skip(self.begin, [info for _, info in self.tensors])
        self.memory = forebay.allocate(self.skip + self.nbytes, zeroed=False)
        view = memoryview(self.memory)[self.skip :]
        at = 0
        while at < self.nbytes:
            begin = self.begin + at
            until = min(at + _CALL_BYTES - begin % _CALL_BYTES, self.nbytes)
            self.calls.append(calls.begin(self.file._file._begin_read_into, begin, view[at:until]))
            at = until

    def end_read(self, calls: Calls) -> None:
        if sum(calls.end(call) for call in self.calls) != self.nbytes:
            raise ValueError(f"{self.file._file.path} became shorter while it was read")

    def tensor(self, info: _Info) -> Any:
        place = self.skip + info.begin - self.begin
        return self.file._framework.tensor(self.memory, place, info.dtype, info.shape, info.end - info.begin)


def _groups(files: Iterable[SafeOpen]) -> Iterator[_Group]:
    for file in files:
        group: list[tuple[str, _Info]] = []
        for name, info in file._tensors.items():
            if group and info.end - group[0][1].begin > _GROUP_BYTES:
                yield _Group(file, group, False)
                group = []
            group.append((name, info))
        yield _Group(file, group, True)


def _stream(
    files: Iterable[SafeOpen], total: int, ahead_bytes: int, progress: Callable[[int, int], object] | None
) -> Iterator[tuple[str, Any]]:
    calls, groups = Calls(), _groups(files)
    reads: deque[_Group] = deque()
    ahead = done = 0
    # Files whose last tensors are in `reads`.
    whole = 0
    failure: Exception | None = None

    def next_group() -> _Group | None:
        nonlocal failure
        try:
            return next(groups, None)
        except Exception as error:
            # Of a file that is opened ahead: it is raised after the tensors of the files before.
            failure = error
            return None

    group = next_group()
    try:
        while reads or group:
            while group and (not reads or (whole < _FILES_AHEAD and ahead + group.nbytes <= ahead_bytes)):
                reads.append(group)
                group.begin_read(calls)
                ahead += group.nbytes
                whole += group.is_last
                group = next_group()
            first = reads[0]
            first.end_read(calls)
            for name, info in first.tensors:
                tensor = first.tensor(info)
                if progress:
                    progress(done + info.end, total)
                yield name, tensor
                del tensor
            if first.is_last:
                done += first.file._size
                first.file.close()
            ahead -= first.nbytes
            whole -= first.is_last
            reads.popleft()
            # Its memory is freed before that of the next reads is allocated.
            del first
        if failure:
            raise failure
    finally:
        # Its traceback has this frame.
        failure = None
        for group in (*reads, *([group] if group else [])):
            for call in group.calls:
                call.cancel()
            group.file.close()
