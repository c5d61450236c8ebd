"""Reads of Python programs: Forebay beside the ways that they have without it. Run by `scripts/bench python`.

Work: `ranges` (a batch of short ranges into one array), `scan` (a file from front to back), `tensors` (a safetensors file), `calls` (single short
reads, one after the other), `asyncio` (short reads, many at once). Each row is one sample per repeat, in a process of its own, interleaved; the
destination has been written to before the clock starts. A cold file is dropped from the page cache before each sample, a warm one read before.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WORK = ["ranges", "scan", "tensors", "calls", "asyncio"]
CACHES = ["cold", "warm"]
RANGE_BYTES = 4096
CALL_BYTES = 4096
BLOCK_BYTES = 1 << 20
SEED = 0x9E3779B97F4A7C15


def places(count: int, file_bytes: int, length: int) -> list[int]:
    """Returns offsets all over a file, the same in every run, at no multiple of a block."""
    state, found = SEED, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        found.append((state >> 16) % (file_bytes - length))
    return found


class Sample:
    """What a row gets: the file, the work's numbers, and a place for its result."""

    def __init__(self, path: str, count: int, is_cold: bool) -> None:
        self.path = path
        self.count = count
        self.bytes = os.path.getsize(path)
        self.is_cold = is_cold

    def measured(self, work: Callable[[], Any]) -> dict[str, float]:
        """Times one call: seconds, and processor seconds of all threads."""
        if self.is_cold:
            evict(self.path)
        else:
            with open(self.path, "rb") as file:
                while file.read(BLOCK_BYTES * 8):
                    pass
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        moved = work()
        took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
        processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return {"seconds": took, "processor_seconds": processor, "bytes": moved}


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

    def tensors(sample: Sample) -> dict[str, float]:
        import forebay
        import numpy  # noqa: F401  (imported by both rows before the clock starts)
        from forebay.safetensors import SafeOpen

        def work() -> int:
            with SafeOpen(sample.path, "np") as file:
                return sum(touch(tensor) for tensor in file.get_tensors().values())

        forebay.stats()
        return sample.measured(work)

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

    return {"ranges": ranges, "scan": scan, "tensors": tensors, "calls": calls, "asyncio": at_once}


async def in_lanes(offsets: list[int], read: Callable[[int], Any], lanes: int = 64) -> list[Any]:
    """Reads with so many at once."""
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


def preadv_ranges(sample: Sample) -> dict[str, float]:
    offsets = places(sample.count, sample.bytes, RANGE_BYTES)
    out = memoryview(touched(sample.count * RANGE_BYTES))
    descriptor = os.open(sample.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    threads = 32

    def part(number: int) -> int:
        moved = 0
        for place in range(number, sample.count, threads):
            target = out[place * RANGE_BYTES : (place + 1) * RANGE_BYTES]
            moved += os.preadv(descriptor, [target], offsets[place])
        return moved

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0.001), range(threads)))
        return sample.measured(lambda: sum(pool.map(part, range(threads))))


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


def safetensors_tensors(sample: Sample) -> dict[str, float]:
    import numpy  # noqa: F401
    import safetensors
    import safetensors.numpy  # noqa: F401

    def work() -> int:
        with safetensors.safe_open(sample.path, "np") as file:
            return sum(touch(file.get_tensor(name)) for name in file.keys())

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


def rows() -> dict[str, dict[str, Callable[[Sample], dict[str, float]]]]:
    """Returns the rows of each work, those whose packages are here."""
    table: dict[str, dict[str, Callable[[Sample], dict[str, float]]]] = {
        "ranges": {"preadv, 32 threads": preadv_ranges, "numpy.memmap": memmap_ranges, "obstore": obstore_ranges},
        "scan": {"readinto": readinto_scan, "numpy.fromfile": fromfile_scan, "numpy.memmap": memmap_scan},
        "tensors": {"safetensors": safetensors_tensors},
        "calls": {"os.pread": pread_calls},
        "asyncio": {"to_thread, os.pread": threads_asyncio, "aiofiles": aiofiles_asyncio},
    }
    for package in ("obstore", "aiofiles", "safetensors"):
        if importlib.util.find_spec(package) is None:
            for work in table.values():
                work.pop(package, None)
            print(f"{package} is not here: its row is left out", file=sys.stderr)
    for mode in ("adaptive", "direct", "buffered"):
        for work, row in of_forebay(mode).items():
            if work != "tensors" or mode == "adaptive":
                table[work][f"forebay, {mode}"] = row
    return table


def make_files(folder: pathlib.Path, mib: int) -> dict[str, str]:
    """Writes the two files, unless they are there."""
    import numpy

    data, model = folder / f"bench-{mib}.bin", folder / f"bench-{mib}.safetensors"
    block = numpy.random.default_rng(5).integers(0, 256, BLOCK_BYTES, "u1")
    if not data.exists():
        with open(data, "wb") as file:
            for number in range(mib):
                block[:8] = numpy.frombuffer(number.to_bytes(8, "little"), "u1")
                file.write(block.tobytes())
    if not model.exists():
        # 4 MiB a tensor, a few of them long, as in a model.
        names = {f"layer.{number}": (1024, 1024) for number in range(mib // 4)}
        header: dict[str, Any] = {}
        end = 0
        for name, shape in names.items():
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + (4 << 20)]}
            end += 4 << 20
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with open(model, "wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for _ in range(end // BLOCK_BYTES):
                file.write(block.tobytes())
    return {"data": str(data), "model": str(model)}


def one_sample(arguments: argparse.Namespace) -> None:
    """Runs one row once and prints its figures; in a process of its own."""
    work, name, cache, path, count = arguments.sample
    print(json.dumps(rows()[work][name](Sample(path, int(count), cache == "cold"))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench python", description=__doc__)
    parser.add_argument("--work", default=",".join(WORK), help="some of: " + ", ".join(WORK))
    parser.add_argument("--caches", default=",".join(CACHES), help="cold, warm or both")
    parser.add_argument("--rows", default="", help="rows whose names contain one of these words")
    parser.add_argument("--file-mib", type=int, default=1024)
    parser.add_argument("--count", type=int, default=20_000, help="ranges of a batch, and single reads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", default=".", help="the folder for the test files, on the disk to measure")
    parser.add_argument("--json", help="writes every sample to this file")
    parser.add_argument("--sample", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        one_sample(arguments)
        return
    chosen = [work for work in arguments.work.split(",") if work]
    unknown = set(chosen) - set(WORK) | set(arguments.caches.split(",")) - set(CACHES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    words = [word for word in arguments.rows.split(",") if word]
    folder = pathlib.Path(arguments.dir).resolve()
    files = make_files(folder, arguments.file_mib)
    samples: list[dict[str, Any]] = []
    try:
        plan = [
            (work, cache, name)
            for work in chosen
            for cache in arguments.caches.split(",")
            for name in rows()[work]
            if not words or any(word in name for word in words)
        ]
        for repeat in range(arguments.repeats):
            for number in range(len(plan)):
                # Each repeat begins elsewhere, so that no row always follows the same one.
                work, cache, name = plan[(number + repeat * 7) % len(plan)]
                path = files["model" if work == "tensors" else "data"]
                command = [sys.executable, __file__, "--sample", work, name, cache, path, str(arguments.count)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    print(f"{work}, {cache}, {name}: failed", file=sys.stderr)
                    continue
                samples.append({"work": work, "cache": cache, "row": name, **json.loads(done.stdout)})
    finally:
        for path in files.values():
            os.unlink(path)
    print("| work | cache | row | ms | least to most | processor ms | MB/s |\n|---|---|---|---|---|---|---|")
    for work, cache, name in plan:
        own = [sample for sample in samples if (sample["work"], sample["cache"], sample["row"]) == (work, cache, name)]
        if own:
            times = [sample["seconds"] * 1e3 for sample in own]
            middle = statistics.median(times)
            processor = statistics.median(sample["processor_seconds"] for sample in own) * 1e3
            rate = own[0]["bytes"] / 1e3 / middle
            print(
                f"| {work} | {cache} | {name} | {middle:,.1f} | {min(times):,.1f} to {max(times):,.1f} "
                f"| {processor:,.1f} | {rate:,.0f} |"
            )
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
