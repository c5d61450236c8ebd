"""A program of a user, as type checkers see it: test_types.py gives it to mypy and pyright. It does not run."""

import asyncio
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

import forebay
from forebay.safetensors import save_file, stream_files

pixels: npt.NDArray[np.uint8] = np.empty((256, 1024), dtype=np.uint8)
weights: npt.NDArray[np.float32] = np.empty(100, dtype=np.float32)
ranges: npt.NDArray[np.int64] = np.zeros((4, 2), dtype=np.int64)


class Tensor:
    """The part of a tensor of torch that matters."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def reads(path: str) -> int:
    with forebay.open(path, "direct", background=True) as file:
        head: bytes = file.read(0, 100)
        count: int = file.read_into(0, pixels) + file.read_into(5, weights) + file.read_into(0, Tensor())
        count += file.read_into(0, bytearray(10)) + file.read_into(0, memoryview(bytearray(10)))
        count += file.read_into(0, forebay.allocate(4096)) + file.read_into(0, mmap.mmap(-1, 4096))
        same: npt.NDArray[np.uint8] = file.read_many(ranges, pixels)
        views: list[memoryview] = file.read_many([(0, 10), (5, 10)])
        views += forebay.read_many([(file, 0, 10)], depth=4)
        blocks: list[memoryview] = list(file.scan())
        with file.io() as stream:
            head += stream.read(10)
            count += stream.readinto(pixels) + stream.seek(0, 2)
    return len(head) + count + len(views) + len(blocks) + same.size


def writes(path: str) -> int:
    with forebay.open(path, write=True, create=True) as file:
        return file.write(0, weights) + file.write(0, b"bytes", durable=True) + file.append(Tensor())


def models(paths: list[str]) -> int:
    save_file({"weights": weights}, paths[0], {"format": "np"}, background=False)
    count = 0
    for name, tensor in stream_files(paths, framework="np", progress=lambda done, total: print(done / total)):
        count += len(name) + tensor.nbytes
    return count


def exports(path: str) -> npt.NDArray[Any]:
    memory: npt.NDArray[Any] = np.from_dlpack(forebay.allocate(4096))
    with forebay.open(path) as file:
        file.read_into(0, memory)
    return memory


async def twins(path: str) -> int:
    with forebay.open(path) as file:
        data: bytes = await file.aread(0, 10)
        count: int = await file.aread_into(0, pixels)
        same: npt.NDArray[np.float32] = await file.aread_many(ranges, weights)
        views: list[memoryview] = await file.aread_many([(0, 10)])
        async for block in file.ascan():
            count += len(block)
        count += await file.awrite(0, weights) + await file.aappend(pixels)
    return len(data) + count + same.size + len(views)


asyncio.run(twins("file"))
print(reads("file"), writes("file"), models(["file"]), exports("file"))
