"""Memory and descriptors over many calls."""

import asyncio
import gc
import os
import sys

import forebay

CALLS = 10_000


def resident_bytes():
    with open("/proc/self/statm") as text:
        return int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def swapped_bytes():
    """Returns the bytes that the kernel has reclaimed from this process meanwhile."""
    with open("/proc/self/status") as text:
        return sum(int(line.split()[1]) << 10 for line in text if line.startswith("VmSwap:"))


def grows_by(work):
    """Returns the growth of the process over the second half of the calls; the first half warms up."""
    for _ in range(CALLS // 2):
        work()
    gc.collect()
    before = resident_bytes()
    for _ in range(CALLS // 2):
        work()
    gc.collect()
    return resident_bytes() - before


def test_reads_leak_nothing(data, tmp_path):
    out = bytearray(64 << 10)
    references = sys.getrefcount(out)
    with forebay.open(data) as file:

        def work():
            file.read(5, 30_000)
            file.read_into(0, out)
            file.read_many([(0, 20_000), (100, 30_000)], out)
            file.read_many([(0, 20_000), (100, 30_000)])
            next(file.scan(block=32 << 10))
            for wrong in (lambda: file.read_many([(1 << 40, 9)], out), lambda: file.read_into(0, b"")):
                try:
                    wrong()
                except (EOFError, BufferError):
                    pass

        assert grows_by(work) < 8 << 20
    assert sys.getrefcount(out) == references


def test_files_leak_nothing(data, eventually):
    descriptors = len(os.listdir("/proc/self/fd"))

    def work():
        forebay.open(data).close()
        forebay.open(data)
        try:
            forebay.open(os.fspath(data) + ".none")
        except FileNotFoundError:
            pass

    growth = grows_by(work)
    assert growth < 8 << 20
    # Files that were only dropped are closed in the background.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 5)


def test_asyncio_leaks_nothing(data):
    out = bytearray(20_000)

    async def many(count):
        with forebay.open(data, "direct") as file:
            for _ in range(count // 20):
                await asyncio.gather(*(file.aread(number, 10_000) for number in range(10)))
                await asyncio.gather(*(file.aread_many([(number, 1000)], out[:1000]) for number in range(10)))

    asyncio.run(many(CALLS // 2))
    gc.collect()
    before = resident_bytes()
    asyncio.run(many(CALLS // 2))
    gc.collect()
    assert resident_bytes() - before < 8 << 20


def test_writes_leak_nothing(tmp_path):
    references = sys.getrefcount(b"some bytes")
    with forebay.open(tmp_path / "file", write=True, create=True) as file:
        piece = bytes(10_000)

        def work():
            file.write(0, piece)
            file.write(4096, memoryview(piece)[:4096])

        assert grows_by(work) < 8 << 20
    assert sys.getrefcount(b"some bytes") <= references + 1


def threads_of_memory():
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm") as text:
                names.append(text.read().strip())
        except FileNotFoundError:
            pass
    return names.count("forebay-memory")


def test_new_memory_gets_ready_beside_its_use(eventually):
    size = 96 << 20
    before = resident_bytes() + swapped_bytes()
    memory = forebay.allocate(size, zeroed=False)
    view = memoryview(memory)
    # Its pages are allocated while they are written to; each keeps its contents.
    for place in range(0, size, 1 << 20):
        view[place : place + 4] = place.to_bytes(4, "little")
    eventually(lambda: threads_of_memory() == 0)
    there = resident_bytes() + swapped_bytes() - before
    assert there > size * 9 // 10, "all of it is there, although little was written to"
    assert all(view[place : place + 4] == place.to_bytes(4, "little") for place in range(0, size, 1 << 20))


def test_memory_that_is_given_up_at_once_comes_back(eventually):
    before = resident_bytes()
    for _ in range(20):
        forebay.allocate(256 << 20, zeroed=False)
    eventually(lambda: threads_of_memory() == 0)
    gc.collect()
    assert resident_bytes() - before < 256 << 20
