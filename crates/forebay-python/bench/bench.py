"""Reads and saves of Python programs: Forebay compared with the alternatives. Run by `scripts/bench python`.

| work | reads |
|---|---|
| `model-300`, `model-18000` | all tensors of a safetensors file of 2 GiB with so many of them |
| `save` | such a file with 300 tensors is rewritten, and synced; also as a checkpoint, with torch from 2.4 on |
| `samples` | batches of 256 samples of 4 to 150 KiB, out of 200,000 |
| `batches` | batches of 256 random ranges of 4 KiB, also from Rust |
| `ranges` | one batch of 20,000 such ranges |
| `scan` | a file from front to back |
| `calls` | single reads of 4 KiB, one after the other |
| `asyncio` | the same, 64 in flight |

Each row is one sample per repeat, in a separate process, interleaved. A cold file is dropped from the page cache before each
sample; the ranges of a warm file are read before. `memory` is the destination: `touched` memory has been written to before the
clock starts, `new` memory has not, `mapped` memory is the page cache itself, of which a byte of each page is read.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

WORK = ["model-300", "model-18000", "save", "samples", "batches", "ranges", "scan", "calls", "asyncio"]
CACHES = ["cold", "warm"]
RANGE_BYTES = 4096
CALL_BYTES = 4096
BLOCK_BYTES = 1 << 20
BATCH = 256
THREADS = 32
SAMPLE_BYTES = (4 << 10, 150 << 10)
SEED = 0x9E3779B97F4A7C15
# Of adjacent tensors; most are short, and most bytes are in long tensors.
TENSOR_WEIGHTS = [0.01, 4, 1, 1, 0.01, 4, 8, 0.01, 8, 2]


def places(count: int, file_bytes: int, length: int) -> list[int]:
    """Returns offsets all over a file, the same in every run, at no multiple of a block."""
    state, found = SEED, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        found.append((state >> 16) % (file_bytes - length))
    return found


def sample_ranges(count: int) -> list[tuple[int, int]]:
    """Returns offset and length of each sample of the file, and behind them its end."""
    least, most = SAMPLE_BYTES
    ranges, end = [], 0
    for number in places(count, most - least + 1, 0):
        ranges.append((end, least + number))
        end += least + number
    return ranges


class Sample:
    """What a row gets: the file, the work's numbers, and a place for its result."""

    def __init__(self, path: str, count: int, batches: int, samples: int, core: str, is_cold: bool) -> None:
        self.path = path
        self.count = count
        self.batches = batches
        self.samples = samples
        self.core = core
        self.bytes = os.path.getsize(path)
        self.is_cold = is_cold

    def prepare(self, ranges: Iterable[tuple[int, int]] | None = None) -> None:
        """Drops the file from the page cache, or reads these ranges, or all of it, into it."""
        if self.is_cold:
            evict(self.path)
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        if ranges is None:
            ranges = ((offset, BLOCK_BYTES * 8) for offset in range(0, self.bytes, BLOCK_BYTES * 8))
        room = bytearray(BLOCK_BYTES * 8)
        for offset, length in ranges:
            os.preadv(descriptor, [memoryview(room)[:length]], offset)
        os.close(descriptor)

    def measured(self, work: Callable[[], Any], ranges: Iterable[tuple[int, int]] | None = None) -> dict[str, Any]:
        """Times one call: seconds, and processor seconds of all threads."""
        self.prepare(ranges)
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        moved = work()
        took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
        processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return {"seconds": took, "processor_seconds": processor, "bytes": moved}

    def each(self, batches: list[Any], read: Callable[[Any], int], ranges: list[Any] | None = None) -> dict[str, Any]:
        """Times batches one after the other. `ranges` are theirs, if they are not pairs themselves."""
        took: list[float] = []

        def work() -> int:
            moved = 0
            for batch in batches:
                begun = time.perf_counter()
                moved += read(batch)
                took.append(time.perf_counter() - begun)
            return moved

        result = self.measured(work, [pair for batch in batches for pair in batch] if ranges is None else ranges)
        return {**result, "each": took}

    def sample_batches(self) -> list[list[tuple[int, int]]]:
        """Returns batches of random samples."""
        ranges = sample_ranges(self.samples)
        picked = [ranges[number] for number in places(BATCH * self.batches, self.samples, 0)]
        return [picked[start : start + BATCH] for start in range(0, len(picked), BATCH)]

    def range_batches(self) -> list[list[tuple[int, int]]]:
        """Returns batches of random ranges."""
        pairs = [(offset, RANGE_BYTES) for offset in places(BATCH * self.batches, self.bytes, RANGE_BYTES)]
        return [pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)]


def evict(path: str) -> None:
    """Drops a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def touched(nbytes: int) -> Any:
    import numpy

    array = numpy.empty(nbytes, "u1")
    array.fill(1)
    return array


def of_forebay(mode: str) -> dict[str, Callable[[Sample], dict[str, float]]]:
    def ranges(sample: Sample) -> dict[str, float]:
        import forebay
        import numpy

        offsets = places(sample.count, sample.bytes, RANGE_BYTES)
        pairs = numpy.stack([numpy.array(offsets), numpy.full(sample.count, RANGE_BYTES)], axis=1)
        out = touched(sample.count * RANGE_BYTES)
        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)

            def work() -> int:
                file.read_many(pairs, out)
                return out.nbytes

            return sample.measured(work)

    def scan(sample: Sample) -> dict[str, float]:
        import forebay

        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)
            return sample.measured(lambda: sum(block.nbytes + block[0] * 0 for block in file.scan()))

    def batches(sample: Sample) -> dict[str, Any]:
        import forebay
        import numpy

        out = touched(BATCH * RANGE_BYTES)
        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)
            pairs = [numpy.array(batch) for batch in sample.range_batches()]

            def read(batch: Any) -> int:
                file.read_many(batch, out)
                return out.nbytes

            return sample.each(pairs, read)

    def samples(sample: Sample) -> dict[str, Any]:
        import forebay

        out = touched(BATCH * SAMPLE_BYTES[1])
        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)

            def read(batch: list[tuple[int, int]]) -> int:
                file.read_many(batch, out)
                return sum(length for _, length in batch)

            return sample.each(sample.sample_batches(), read)

    def calls(sample: Sample) -> dict[str, float]:
        import forebay

        offsets = places(sample.count, sample.bytes, CALL_BYTES)
        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)
            return sample.measured(lambda: sum(len(file.read(offset, CALL_BYTES)) for offset in offsets))

    def at_once(sample: Sample) -> dict[str, float]:
        import forebay

        offsets = places(sample.count, sample.bytes, CALL_BYTES)

        async def main(file: forebay.File) -> int:
            return sum(map(len, await in_lanes(offsets, lambda offset: file.aread(offset, CALL_BYTES))))

        with forebay.open(sample.path, mode) as file:
            file.read(0, 1)
            return sample.measured(lambda: asyncio.run(main(file)))

    return {
        "ranges": ranges,
        "batches": batches,
        "samples": samples,
        "scan": scan,
        "calls": calls,
        "asyncio": at_once,
    }


def forebay_model(sample: Sample, is_new: bool) -> dict[str, Any]:
    import forebay
    import numpy  # noqa: F401  (imported by all rows before the clock starts)
    from forebay.safetensors import load_file

    forebay.stats()
    out = None if is_new else forebay.allocate(sample.bytes + 4096)
    if out is not None:
        memoryview(out)[::4096] = b"\1" * len(memoryview(out)[::4096])

    def work() -> int:
        tensors = load_file(sample.path, framework="np", out=out)
        return sum(tensor.nbytes for tensor in tensors.values())

    return sample.measured(work)


def forebay_stream(sample: Sample) -> dict[str, Any]:
    from forebay.safetensors import stream_files

    return sample.measured(lambda: sum(tensor.nbytes for _, tensor in stream_files([sample.path], framework="np")))


def saved(sample: Sample, save: Callable[[dict[str, Any], str], None]) -> dict[str, Any]:
    """Times a function that writes the tensors of the file to another one."""
    from forebay.safetensors import load_file

    tensors = load_file(sample.path, framework="np")
    target = f"{sample.path}.saved"

    def work() -> int:
        save(tensors, target)
        return os.path.getsize(target)

    try:
        return sample.measured(work)
    finally:
        os.unlink(target)


def forebay_save(tensors: dict[str, Any], target: str) -> None:
    from forebay.safetensors import save_file

    save_file(tensors, target)


def safetensors_save(tensors: dict[str, Any], target: str) -> None:
    import safetensors.numpy

    safetensors.numpy.save_file(tensors, target)
    sync(target)


def torch_save(tensors: dict[str, Any], target: str) -> None:
    import torch

    torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, target)
    sync(target)


def checkpointed(sample: Sample, is_ours: bool) -> dict[str, Any]:
    """Times a checkpoint of the tensors of the file, in a folder."""
    import torch
    import torch.distributed.checkpoint as dcp
    from forebay.checkpoint import CheckpointWriter
    from forebay.safetensors import load_file

    tensors = {name: torch.from_numpy(tensor) for name, tensor in load_file(sample.path, framework="np").items()}
    target = f"{sample.path}.saved"

    def work() -> int:
        # Both make the bytes of their files durable.
        dcp.save(tensors, storage_writer=(CheckpointWriter if is_ours else dcp.FileSystemWriter)(target))
        if not is_ours:
            sync(target)
        return sum(file.stat().st_size for file in os.scandir(target))

    try:
        return sample.measured(work)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def has_checkpoints() -> bool:
    """Returns whether there is a version of torch that forebay.checkpoint supports."""
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 4)


def sync(path: str) -> None:
    """Makes a file and its name durable."""
    for name in (path, os.path.dirname(path)):
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def direct_save(sample: Sample) -> dict[str, Any]:
    """The bare writes of such a save: whole blocks, past the page cache, by threads."""
    import forebay

    length = sample.bytes // 4096 * 4096
    room = memoryview(forebay.allocate(length))
    room[::4096] = b"\1" * len(room[::4096])
    target = f"{sample.path}.saved"
    part_bytes, threads = 4 << 20, 4

    def work() -> int:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)

        def part(number: int) -> int:
            starts = range(number * part_bytes, length, part_bytes * threads)
            return sum(os.pwrite(descriptor, room[start : start + part_bytes], start) for start in starts)

        moved = sum(pool.map(part, range(threads)))
        os.close(descriptor)
        sync(target)
        return moved

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0.001), range(threads)))
        try:
            return sample.measured(work)
        finally:
            os.unlink(target)


def forebay_data_set(sample: Sample) -> dict[str, Any]:
    from forebay.torch import RangeDataset

    ranges = [pair for batch in sample.sample_batches() for pair in batch]
    batches = [list(range(start, start + BATCH)) for start in range(0, len(ranges), BATCH)]
    samples = RangeDataset([sample.path], ranges, shared=True)
    samples[0]

    def read(batch: Any) -> int:
        return sum(view.nbytes for view in samples.__getitems__(batch))

    return sample.each(batches, read, ranges)


def core(sample: Sample, *arguments: str) -> dict[str, Any]:
    """The same from Rust, in a separate process."""
    sample.prepare(None if arguments[0] == "scan" else [pair for batch in sample.range_batches() for pair in batch])
    done = subprocess.run([sample.core, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


async def in_lanes(offsets: list[int], read: Callable[[int], Any], lanes: int = 64) -> list[Any]:
    """Reads with so many in flight."""
    results: list[Any] = []
    left = iter(offsets)

    async def lane() -> None:
        for offset in left:
            results.append(await read(offset))

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return results


def touch(tensor: Any) -> int:
    """Looks at a byte of each page, as a program does that uses the tensor."""
    view = tensor.reshape(-1).view("u1")
    view[::4096].max(initial=0)
    return int(tensor.nbytes)


def read_by_threads(sample: Sample) -> Callable[[list[tuple[int, int]], memoryview], int]:
    """Returns a read of pairs side by side, by `preadv` in threads that are there already."""
    descriptor = os.open(sample.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    list(pool.map(lambda _: time.sleep(0.001), range(THREADS)))

    def read(pairs: list[tuple[int, int]], out: memoryview) -> int:
        starts, end = [], 0
        for _, length in pairs:
            starts.append(end)
            end += length

        def part(number: int) -> int:
            moved = 0
            for place in range(number, len(pairs), THREADS):
                offset, length = pairs[place]
                moved += os.preadv(descriptor, [out[starts[place] : starts[place] + length]], offset)
            return moved

        return sum(pool.map(part, range(THREADS)))

    return read


def preadv_ranges(sample: Sample) -> dict[str, Any]:
    pairs = [(offset, RANGE_BYTES) for offset in places(sample.count, sample.bytes, RANGE_BYTES)]
    out = memoryview(touched(sample.count * RANGE_BYTES))
    read = read_by_threads(sample)
    return sample.measured(lambda: read(pairs, out))


def preadv_batches(sample: Sample, batches: list[list[tuple[int, int]]], most_bytes: int) -> dict[str, Any]:
    out = memoryview(touched(BATCH * most_bytes))
    read = read_by_threads(sample)
    return sample.each(batches, lambda batch: read(batch, out))


def memmap_batches(sample: Sample, batches: list[list[tuple[int, int]]], most_bytes: int) -> dict[str, Any]:
    import numpy

    mapped = numpy.memmap(sample.path, "u1", "r")
    out = touched(BATCH * most_bytes)

    def read(batch: list[tuple[int, int]]) -> int:
        end = 0
        for offset, length in batch:
            out[end : end + length] = mapped[offset : offset + length]
            end += length
        return end

    return sample.each(batches, read)


def obstore_batches(sample: Sample, batches: list[list[tuple[int, int]]]) -> dict[str, Any]:
    import obstore
    from obstore.store import LocalStore

    store = LocalStore(os.path.dirname(sample.path))
    name = os.path.basename(sample.path)

    def read(batch: list[tuple[int, int]]) -> int:
        starts, lengths = zip(*batch)
        return sum(map(len, obstore.get_ranges(store, name, starts=list(starts), lengths=list(lengths))))

    return sample.each(batches, read)


def memmap_ranges(sample: Sample) -> dict[str, float]:
    import numpy

    offsets = places(sample.count, sample.bytes, RANGE_BYTES)
    out = touched(sample.count * RANGE_BYTES)

    def work() -> int:
        mapped = numpy.memmap(sample.path, "u1", "r")
        for number, offset in enumerate(offsets):
            out[number * RANGE_BYTES : (number + 1) * RANGE_BYTES] = mapped[offset : offset + RANGE_BYTES]
        return int(out.nbytes)

    return sample.measured(work)


def obstore_ranges(sample: Sample) -> dict[str, float]:
    import obstore
    from obstore.store import LocalStore

    offsets = places(sample.count, sample.bytes, RANGE_BYTES)
    store = LocalStore(os.path.dirname(sample.path))
    name = os.path.basename(sample.path)

    def work() -> int:
        found = obstore.get_ranges(store, name, starts=offsets, lengths=[RANGE_BYTES] * len(offsets))
        return sum(map(len, found))

    return sample.measured(work)


def readinto_scan(sample: Sample) -> dict[str, float]:
    room = memoryview(touched(BLOCK_BYTES))

    def work() -> int:
        moved = 0
        with open(sample.path, "rb", buffering=0) as file:
            while count := file.readinto(room):
                moved += count
        return moved

    return sample.measured(work)


def fromfile_scan(sample: Sample) -> dict[str, float]:
    import numpy

    def work() -> int:
        moved = 0
        with open(sample.path, "rb") as file:
            while len(part := numpy.fromfile(file, "u1", BLOCK_BYTES)):
                moved += len(part)
        return moved

    return sample.measured(work)


def memmap_scan(sample: Sample) -> dict[str, float]:
    import numpy

    def work() -> int:
        mapped = numpy.memmap(sample.path, "u1", "r")
        mapped[::4096].max()
        return int(mapped.nbytes)

    return sample.measured(work)


def safetensors_model(sample: Sample, memory: str) -> dict[str, Any]:
    import numpy
    import safetensors
    import safetensors.numpy  # noqa: F401

    out = touched(sample.bytes) if memory == "touched" else None

    def work() -> int:
        end = 0
        with safetensors.safe_open(sample.path, "np") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                if out is not None:
                    numpy.copyto(out[end : end + tensor.nbytes], tensor.reshape(-1).view("u1"))
                elif memory == "new":
                    tensor = tensor.copy()
                else:
                    touch(tensor)
                kept.append(tensor)
                end += tensor.nbytes
        return end

    kept: list[Any] = []
    return sample.measured(work)


def direct_model(sample: Sample) -> dict[str, Any]:
    """The bare reads of such a load: whole blocks, past the page cache, by threads."""
    import forebay

    length = sample.bytes // 4096 * 4096
    memory = forebay.allocate(length)
    room = memoryview(memory)
    room[::4096] = b"\1" * len(room[::4096])
    descriptor = os.open(sample.path, os.O_RDONLY | os.O_DIRECT)
    part_bytes, threads = 4 << 20, 4

    def part(number: int) -> int:
        starts = range(number * part_bytes, length, part_bytes * threads)
        return sum(os.preadv(descriptor, [room[start : start + part_bytes]], start) for start in starts)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0.001), range(threads)))
        return sample.measured(lambda: sum(pool.map(part, range(threads))))


def fastsafetensors_model(sample: Sample) -> dict[str, Any]:
    import torch  # noqa: F401
    from fastsafetensors import fastsafe_open

    def work() -> int:
        with fastsafe_open([sample.path], nogds=True, device="cpu") as file:
            tensors = [file.get_tensor(name).clone() for name in file.keys()]
            return sum(tensor.nbytes for tensor in tensors)

    return sample.measured(work)


def pread_calls(sample: Sample) -> dict[str, float]:
    offsets = places(sample.count, sample.bytes, CALL_BYTES)
    descriptor = os.open(sample.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return sample.measured(lambda: sum(len(os.pread(descriptor, CALL_BYTES, offset)) for offset in offsets))


def threads_asyncio(sample: Sample) -> dict[str, float]:
    offsets = places(sample.count, sample.bytes, CALL_BYTES)
    descriptor = os.open(sample.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    async def main() -> int:
        read = lambda offset: asyncio.to_thread(os.pread, descriptor, CALL_BYTES, offset)  # noqa: E731
        return sum(map(len, await in_lanes(offsets, read)))

    return sample.measured(lambda: asyncio.run(main()))


def aiofiles_asyncio(sample: Sample) -> dict[str, float]:
    import aiofiles

    offsets = places(sample.count, sample.bytes, CALL_BYTES)

    async def main() -> int:
        # A file of aiofiles has one position, so each lane has a file.
        lanes, moved = 64, 0

        async def lane(number: int) -> int:
            count = 0
            async with aiofiles.open(sample.path, "rb", buffering=0) as file:
                for offset in offsets[number::lanes]:
                    await file.seek(offset)
                    count += len(await file.read(CALL_BYTES))
            return count

        moved = sum(await asyncio.gather(*(lane(number) for number in range(lanes))))
        return moved

    return sample.measured(lambda: asyncio.run(main()))


Row = Callable[[Sample], dict[str, Any]]
SAVE = ("forebay, save_file", "touched")


def rows() -> dict[str, dict[tuple[str, str], Row]]:
    """Returns the rows of each work by name and memory, those whose packages are here."""
    model: dict[tuple[str, str], Row] = {
        ("safetensors", "mapped"): functools.partial(safetensors_model, memory="mapped"),
        ("safetensors, copied", "touched"): functools.partial(safetensors_model, memory="touched"),
        ("safetensors, copied", "new"): functools.partial(safetensors_model, memory="new"),
        ("fastsafetensors", "new"): fastsafetensors_model,
        ("preadv, O_DIRECT", "touched"): direct_model,
        ("forebay", "touched"): functools.partial(forebay_model, is_new=False),
        ("forebay", "new"): functools.partial(forebay_model, is_new=True),
        ("forebay, stream_files", "new"): forebay_stream,
        ("core, scan", "-"): lambda sample: core(sample, "scan", sample.path),
    }
    table: dict[str, dict[tuple[str, str], Row]] = {
        "model-300": model,
        "model-18000": model,
        "save": {
            ("pwrite, O_DIRECT", "touched"): direct_save,
            ("safetensors, fsync", "touched"): functools.partial(saved, save=safetensors_save),
            ("torch, save and fsync", "touched"): functools.partial(saved, save=torch_save),
            SAVE: functools.partial(saved, save=forebay_save),
        },
        "samples": {
            ("preadv, 32 threads", "touched"): lambda sample: preadv_batches(sample, sample.sample_batches(), SAMPLE_BYTES[1]),
            ("numpy.memmap", "touched"): lambda sample: memmap_batches(sample, sample.sample_batches(), SAMPLE_BYTES[1]),
            ("obstore", "new"): lambda sample: obstore_batches(sample, sample.sample_batches()),
            ("forebay.torch.RangeDataset(shared=True)", "new"): forebay_data_set,
        },
        "batches": {
            ("preadv, 32 threads", "touched"): lambda sample: preadv_batches(sample, sample.range_batches(), RANGE_BYTES),
            ("numpy.memmap", "touched"): lambda sample: memmap_batches(sample, sample.range_batches(), RANGE_BYTES),
            ("obstore", "new"): lambda sample: obstore_batches(sample, sample.range_batches()),
        },
        "ranges": {
            ("preadv, 32 threads", "touched"): preadv_ranges,
            ("numpy.memmap", "touched"): memmap_ranges,
            ("obstore", "new"): obstore_ranges,
        },
        "scan": {
            ("readinto", "touched"): readinto_scan,
            ("numpy.fromfile", "new"): fromfile_scan,
            ("numpy.memmap", "mapped"): memmap_scan,
        },
        "calls": {("os.pread", "new"): pread_calls},
        "asyncio": {("to_thread, os.pread", "new"): threads_asyncio, ("aiofiles", "new"): aiofiles_asyncio},
    }
    if has_checkpoints():
        table["save"]["torch, checkpoint and fsync", "touched"] = functools.partial(checkpointed, is_ours=False)
        table["save"]["torch, checkpoint by forebay", "touched"] = functools.partial(checkpointed, is_ours=True)
    for package in ("obstore", "aiofiles", "safetensors", "fastsafetensors", "torch"):
        if importlib.util.find_spec(package) is None:
            table = {
                work: {row: run for row, run in own.items() if row[0].split(",")[0] != package}
                for work, own in table.items()
            }
            print(f"{package} is not here: its rows are left out", file=sys.stderr)
    for mode in ("adaptive", "direct", "buffered"):
        for work, row in of_forebay(mode).items():
            table[work][f"forebay, {mode}", "touched" if work in ("ranges", "batches", "samples") else "-"] = row
        table["batches"][f"core, {mode}", "touched"] = functools.partial(core_batches, mode=mode)
    return table


def core_batches(sample: Sample, mode: str) -> dict[str, Any]:
    return core(sample, "batches", sample.path, mode, str(BATCH), str(sample.batches))


def write_file(path: pathlib.Path, nbytes: int, header: bytes = b"") -> str:
    """Writes a file of bytes that no device compresses, unless it is there."""
    import numpy

    if not path.exists():
        block = numpy.random.default_rng(5).integers(0, 256, BLOCK_BYTES, "u1")
        with open(path, "wb") as file:
            file.write(header)
            for start in range(0, nbytes, BLOCK_BYTES):
                block[:8] = numpy.frombuffer(start.to_bytes(8, "little"), "u1")
                file.write(block[: nbytes - start].tobytes())
            os.fsync(file.fileno())
    return str(path)


def write_model(path: pathlib.Path, nbytes: int, tensors: int) -> str:
    unit = nbytes / tensors / statistics.mean(TENSOR_WEIGHTS)
    described: dict[str, Any] = {}
    end = 0
    for number in range(tensors):
        columns = 64
        lines = max(1, int(TENSOR_WEIGHTS[number % len(TENSOR_WEIGHTS)] * unit / columns / 2))
        length = lines * columns * 2
        described[f"model.layers.{number}.weight"] = {
            "dtype": "F16",
            "shape": [lines, columns],
            "data_offsets": [end, end + length],
        }
        end += length
    encoded = json.dumps(described).encode()
    encoded += b" " * (-len(encoded) % 8)
    return write_file(path, end, len(encoded).to_bytes(8, "little") + encoded)


def make_file(work: str, folder: pathlib.Path, mib: int, samples: int) -> str:
    """Returns the file of a work, which it writes unless it is there."""
    if work == "save" or work.startswith("model-"):
        tensors = 300 if work == "save" else int(work.removeprefix("model-"))
        return write_model(folder / f"bench-{work}.safetensors", mib << 20, tensors)
    if work == "samples":
        return write_file(folder / "bench-samples.bin", sum(length for _, length in sample_ranges(samples)))
    return write_file(folder / "bench.bin", mib << 20)


def one_sample(arguments: argparse.Namespace) -> None:
    """Runs one row once and prints its figures; in a separate process."""
    work, name, memory, cache, path = arguments.sample
    numbers = (arguments.count, arguments.batches, arguments.samples)
    print(json.dumps(rows()[work][name, memory](Sample(path, *numbers, arguments.core, cache == "cold"))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench python", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", default=",".join(WORK), help="some of: " + ", ".join(WORK))
    parser.add_argument("--caches", default=",".join(CACHES), help="cold, warm or both")
    parser.add_argument("--rows", default="", help="rows whose names contain one of these words")
    parser.add_argument("--file-mib", type=int, default=2048, help="length of each file but that of the samples")
    parser.add_argument("--samples", type=int, default=200_000, help="samples in their file: 15.4 GB by default")
    parser.add_argument("--batches", type=int, default=40, help="batches of a row")
    parser.add_argument("--count", type=int, default=20_000, help="ranges of the one batch, and single reads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", default=".", help="the folder for the test files, on the disk to measure")
    parser.add_argument("--json", help="writes every sample to this file")
    parser.add_argument("--core", default="", help=argparse.SUPPRESS)
    parser.add_argument("--sample", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        one_sample(arguments)
        return
    chosen = [work for work in arguments.work.split(",") if work]
    caches = arguments.caches.split(",")
    unknown = set(chosen) - set(WORK) | set(caches) - set(CACHES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    words = [word for word in arguments.rows.split(",") if word]
    folder = pathlib.Path(arguments.dir).resolve()
    table = rows()
    options = [f"--{name}={getattr(arguments, name)}" for name in ("count", "batches", "samples", "core")]
    results: list[dict[str, Any]] = []
    ratios: list[str] = []
    print("| work | cache | row | memory | ms | least to most | processor ms | MB/s | us a batch |\n|---|---|---|---|---|---|---|---|---|")
    # One work after the other, as each has a file.
    for work in chosen:
        path = make_file(work, folder, arguments.file_mib, arguments.samples)
        try:
            plan = [(cache, row) for cache in caches for row in table[work] if not words or any(word in row[0] for word in words)]
            samples: dict[Any, list[dict[str, Any]]] = {key: [] for key in plan}
            for repeat in range(arguments.repeats):
                for number in range(len(plan)):
                    # Each repeat starts at another row, so that no row always follows the same row.
                    cache, row = plan[(number + repeat * 7) % len(plan)]
                    command = [sys.executable, __file__, *options, "--sample", work, *row, cache, path]
                    # The threads of numpy's linear algebra spin for a while when they are made.
                    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=alone)
                    if done.returncode:
                        print(f"{work}, {cache}, {row[0]}: failed", file=sys.stderr)
                        continue
                    samples[cache, row].append(json.loads(done.stdout))
        finally:
            os.unlink(path)
        for (cache, (name, memory)), own in samples.items():
            results += [{"work": work, "cache": cache, "row": name, "memory": memory, **sample} for sample in own]
            if own:
                report(work, cache, name, memory, own)
        for cache in caches:
            ratios += compare(work, cache, {row: own for (of, row), own in samples.items() if of == cache})
    if ratios:
        print("", *ratios, sep="\n")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")


def report(work: str, cache: str, name: str, memory: str, own: list[dict[str, Any]]) -> None:
    times = [sample["seconds"] * 1e3 for sample in own]
    middle = statistics.median(times)
    processor = statistics.median(sample["processor_seconds"] for sample in own) * 1e3
    rate = own[0]["bytes"] / 1e3 / middle
    each = [took for sample in own for took in sample.get("each", [])]
    batch = f"{statistics.median(each) * 1e6:,.0f}" if each else ""
    spread = f"{min(times):,.1f} to {max(times):,.1f}"
    print(
        f"| {work} | {cache} | {name} | {memory} | {middle:,.1f} | {spread} | {processor:,.1f} | {rate:,.0f} | {batch} |",
        flush=True,
    )
    figures = [(f"{middle:,.1f}", "ms", spread), (f"{processor:,.1f}", "processor ms", ""), (f"{rate:,.0f}", "MB/s", "")]
    figures += [(batch, "us a batch", "")] if batch else []
    record(f"{work}, {cache}, {name}, {memory}", figures)


def compare(work: str, cache: str, rows: dict[Any, list[dict[str, Any]]]) -> list[str]:
    """Returns a line for each row beside the save of Forebay: the median of the ratios of each repeat."""
    lines = []
    for row, own in rows.items():
        if row != SAVE and len(own) == len(rows.get(SAVE, [])) > 0:
            ratios = [other["seconds"] / ours["seconds"] for other, ours in zip(own, rows[SAVE])]
            middle, spread = f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"
            text = f"{work}, {cache}, {SAVE[0]} beside {row[0]}"
            lines.append(f"{text}: {middle} times as fast ({spread})")
            record(text, [(middle, "times as fast", spread)])
    return lines


def record(row: str, figures: list[tuple[str, str, str]]) -> None:
    """Gives figures to `scripts/bench --record`."""
    if path := os.environ.get("FOREBAY_BENCH_ROWS"):
        with open(path, "a") as file:
            file.writelines("\t".join(("python", row, *figure)) + "\n" for figure in figures)


if __name__ == "__main__":
    main()
