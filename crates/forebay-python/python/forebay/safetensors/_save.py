"""The bytes of tensors, in the order in which a safetensors file has them."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from forebay._output import Output
from forebay.safetensors._dtypes import HEADER_BYTES_MAX, TORCH

__all__ = ["save_file"]

_NAMES = {theirs: name for name, theirs in TORCH.items()}
# Tensors that are not plain bytes of this machine's memory are copied in parts of this length.
_PART_BYTES = 8 << 20


def save_file(
    tensors: Mapping[str, Any],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    background: bool = True,
) -> None:
    """Saves arrays of numpy, or tensors of torch on any device, as a safetensors file.

    The new file replaces the old file when it is whole and durable: at any time `filename` is all of the old file or all of the new
    file. A process that is killed may leave a file `.forebay-*.tmp` next to it. The writes bypass the page cache and need 32 MiB of
    memory, also for tensors that are not contiguous or on another device. They give way to other I/O of the process unless
    `background` is False.

    Raises TypeError for an object that is not a tensor, or has elements unknown to the format, ValueError for names and metadata
    that a header cannot have, and OSError, also where `filename` is a device, a pipe or a socket.
    """
    items = [_describe(name, tensor) for name, tensor in tensors.items()]
    # The longest elements first, so that all lie at multiples of their length.
    items.sort(key=lambda item: (-item[4], item[0]))
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise TypeError("metadata must be a dict of texts")
        header["__metadata__"] = dict(metadata)
    end = 0
    for name, _, dtype, shape, _, nbytes in items:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES_MAX:
        raise ValueError(f"the header has {len(text)} bytes, and {HEADER_BYTES_MAX} are allowed")
    with Output(filename, background) as output:
        output.write(struct.pack("<Q", len(text)))
        output.write(text)
        for _, tensor, _, _, _, nbytes in items:
            if nbytes:
                for part in _parts(tensor, nbytes):
                    output.write(part)


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _describe(name: str, tensor: Any) -> tuple[str, Any, str, list[int], int, int]:
    """Returns name and tensor, the dtype as the format calls it, the shape, the length of an element and of all."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"no tensor can have the name {name!r}")
    if _is_torch(tensor):
        if str(tensor.layout) != "torch.strided":
            raise TypeError(f"{name!r} is sparse; the format has dense tensors only")
        dtype, item = str(tensor.dtype).removeprefix("torch."), tensor.element_size()
        shape, nbytes = list(tensor.shape), tensor.numel() * item
        if nbytes and tensor.device.type in ("cpu", "meta") and tensor.data_ptr() == 0:
            # Such as tensors that are spread over ranks, or quantized tensors.
            raise TypeError(f"{name!r} is of {type(tensor)}, which has no bytes of its own; give the tensors that it is made of")
    else:
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(tensor, (numpy.ndarray, numpy.generic)):
            raise TypeError(f"{name!r} is of {type(tensor)}; give arrays of numpy or tensors of torch")
        # Rows of subclasses need not have a dimension less.
        tensor = numpy.asarray(tensor)
        dtype, item = tensor.dtype.name, tensor.dtype.itemsize
        shape, nbytes = list(tensor.shape), tensor.nbytes
    if dtype not in _NAMES:
        raise TypeError(f"{name!r} has elements of the type {dtype}, which the format does not know")
    if _NAMES[dtype] == "F4":
        # An element of torch's type is two of the file's.
        shape = [*shape[:-1], shape[-1] * 2]
    return name, tensor, _NAMES[dtype], shape, item, nbytes


def _parts(tensor: Any, nbytes: int) -> Iterator[memoryview]:
    """Yields the bytes of a tensor in their order, without a copy of more than some of it."""
    if nbytes <= _PART_BYTES or _is_plain(tensor):
        yield _bytes(tensor, nbytes)
        return
    rows = len(tensor)
    row_bytes = nbytes // rows
    step = _PART_BYTES // row_bytes
    if step == 0:
        for row in tensor:
            yield from _parts(row, row_bytes)
        return
    for begin in range(0, rows, step):
        part = tensor[begin : begin + step]
        yield _bytes(part, len(part) * row_bytes)


def _is_plain(tensor: Any) -> bool:
    """Returns whether the tensor's memory has its bytes in their order."""
    if _is_torch(tensor):
        is_lazy = tensor.is_conj() or tensor.is_neg()
        return bool(tensor.device.type == "cpu" and tensor.is_contiguous() and not is_lazy)
    return bool(tensor.flags.c_contiguous and tensor.dtype.newbyteorder("<") == tensor.dtype)


def _bytes(tensor: Any, nbytes: int) -> memoryview:
    if _is_torch(tensor):
        if not _is_plain(tensor):
            tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        address = tensor.data_ptr()
        if address == 0:
            # It was on another device, and its copy is made of others as well.
            raise TypeError(f"a tensor is of {type(tensor)}, which has no bytes of its own; give the tensors that it is made of")
        memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
        # It must live as long as the view.
        memory.tensor = tensor
        return memoryview(memory)
    import numpy

    array: Any = numpy.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
    return memoryview(array.reshape(-1).view(numpy.uint8))
