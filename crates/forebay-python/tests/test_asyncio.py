"""The calls for asyncio."""

import array
import asyncio
import gc
import os
import select
import sys
import threading
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from conftest import SIZE
from forebay import _aio
from forebay._forebay import Hub

HOLES = 1 << 40


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a new loop."""
    if request.param == "asyncio":
        return asyncio.run
    uvloop = pytest.importorskip("uvloop")

    def run(work):
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(work)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    return run


@pytest.fixture
def slow(tmp_path):
    """A file and a batch that lasts many seconds."""
    path = tmp_path / "holes"
    with open(path, "wb") as holes:
        holes.truncate(HOLES)
    # More than the kernel reads in ten seconds: the process may be stopped for some of them.
    count = 2_000_000
    numbers = array.array("Q", bytes(16 * count))
    numbers[::2] = array.array("Q", range(0, count << 18, 1 << 18))
    numbers[1::2] = array.array("Q", [1]) * count
    with forebay.open(path, "direct") as file:
        yield file, memoryview(numbers).cast("B").cast("Q", (count, 2)), count


def test_every_call_has_its_twin(data, content, tmp_path, mode, run):
    async def work():
        with forebay.open(data, mode) as file:
            assert await file.aread(5, 100) == content[5:105]
            assert await file.aread(SIZE - 3) == content[-3:]
            assert await file.aread(100_000, 900_000) == content[100_000:1_000_000]
            room = bytearray(5000)
            assert await file.aread_into(7, room) == 5000
            assert room == content[7:5007]
            views = await file.aread_many([(1, 2), (500_000, 70_000)])
            assert list(map(bytes, views)) == [content[1:3], content[500_000:570_000]]
            out = bytearray(4)
            assert await file.aread_many([(1, 2), (9, 2)], out) is out
            assert out == content[1:3] + content[9:11]
            assert list(map(bytes, await forebay.aread_many([(file, 3, 4)]))) == [content[3:7]]
            assert await forebay.aread_many([(file, 3, 4)], out) is out
            blocks = [bytes(block) async for block in file.ascan(10, SIZE - 10, 100_000)]
            assert b"".join(blocks) == content[10 : SIZE - 10]
            with pytest.raises(EOFError):
                await file.aread_many([(SIZE, 1)])
            with pytest.raises(BufferError):
                await file.aread_into(0, b"constant")
        with pytest.raises(ValueError, match="is closed"):
            await file.aread(0, 1)
        with forebay.open(tmp_path / "new", mode, write=True, create=True) as file:
            assert await file.awrite(0, b"hello") == 5
            assert await file.aappend(b" world", durable=True) == 5
            await file.afsync()
            assert await file.aread(0) == b"hello world"

    run(work())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), tasks=st.integers(1, 200))
def test_many_calls_at_once(data, content, run, evict, seed, tasks):
    evict(data)

    async def read(file, number):
        offset = (seed + number * 104729) % SIZE
        assert await file.aread(offset, 3000) == content[offset : offset + 3000]

    async def work():
        with forebay.open(data) as file:
            await asyncio.gather(*(read(file, number) for number in range(tasks)))
            assert len(_aio.place()[0]) == 0

    run(work())


def test_no_thread_is_made_for_a_call(slow, run):
    file, ranges, count = slow

    async def work():
        await file.aread(0, 1)
        before = set(os.listdir("/proc/self/task"))
        some = ranges[: count // 8]
        tasks = [asyncio.ensure_future(file.aread_many(some, bytearray(len(some)), depth=1, max_gap=0)) for _ in range(8)]
        while len(_aio.place()[0]) < len(tasks) and not any(task.done() for task in tasks):
            await asyncio.sleep(0)
        await asyncio.sleep(0.2)
        during = set(os.listdir("/proc/self/task"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(during - before) <= 1, "one thread for memory that comes back"

    run(work())


def test_the_loop_goes_on_during_a_call(slow, run):
    file, ranges, count = slow

    async def work():
        task = asyncio.ensure_future(file.aread_many(ranges, depth=1, max_gap=0))
        for turn in range(50):
            await asyncio.sleep(0.001)
            assert not task.done(), f"the loop had {turn} turns"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work())


def test_a_cancelled_task_gives_its_call_up(slow, run, eventually):
    file, ranges, count = slow
    out = bytearray(count)

    async def work():
        hub, _ = _aio.place()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(file.aread_many(ranges, out, depth=1, max_gap=0), 0.2)
        assert len(hub) == 0
        assert await file.aread(0, 5) == bytes(5)

    run(work())

    def resizable():
        try:
            out.clear()
            return True
        except BufferError:
            return False

    eventually(resizable)


def test_tasks_cancelled_at_any_moment(data, content, run, evict, eventually):
    import random

    choose = random.Random(7)
    outs = []

    async def one(file, number):
        out = bytearray(60_000)
        outs.append(out)
        places = [(choose.randrange(SIZE - 3000), 3000) for _ in range(20)]
        await file.aread_many(places, out)
        assert out == b"".join(content[offset : offset + length] for offset, length in places)
        assert await file.aread_into(number, memoryview(out)[:10_000]) == 10_000
        assert out[:10_000] == content[number : number + 10_000]
        async for block in file.ascan(block=64 << 10):
            assert len(block)

    async def work():
        with forebay.open(data, "direct") as file:
            tasks = [asyncio.ensure_future(one(file, number)) for number in range(150)]
            while left := [task for task in tasks if not task.done()]:
                for task in choose.sample(left, min(3, len(left))):
                    task.cancel()
                await asyncio.sleep(choose.choice([0, 0, 0.0005, 0.002]))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
            assert len(_aio.place()[0]) == 0
            assert await file.aread(3, 3) == content[3:6]

    evict(data)
    run(work())

    def all_back():
        try:
            for out in outs:
                out.clear()
            return True
        except BufferError:
            return False

    eventually(all_back)


def test_a_loop_that_closes_with_calls_in_flight(slow, eventually):
    file, ranges, count = slow
    out = bytearray(count)
    loop = asyncio.new_event_loop()
    task = loop.create_task(file.aread_many(ranges, out, depth=1, max_gap=0))
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    hub = _aio._hubs[loop]
    assert len(hub) == 1
    task._log_destroy_pending = False
    gone = weakref.ref(loop)
    del task, hub, loop

    def ended():
        gc.collect()
        try:
            out.clear()
        except BufferError:
            return False
        return gone() is None

    async def another():
        assert await file.aread(0, 2) == bytes(2)

    asyncio.run(another())
    eventually(ended)


def test_several_loops_in_several_threads(data, content):
    failures = []
    with forebay.open(data) as file:

        async def work(seed):
            for number in range(50):
                offset = (seed * 7919 + number * 104729) % SIZE
                part = await file.aread(offset, 2000)
                views = await file.aread_many([(offset, 10), (seed, 10)])
                if part != content[offset : offset + 2000] or bytes(views[1]) != content[seed : seed + 10]:
                    failures.append(offset)

        def in_thread(seed):
            try:
                asyncio.run(work(seed))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=in_thread, args=(seed,)) for seed in range(5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failures


def test_loops_that_start_together_in_many_threads(data, content):
    # A program with a loop in each thread: the first call of a loop failed with "dictionary changed size during iteration" where
    # another loop made its first call meanwhile.
    failures = []
    interval = sys.getswitchinterval()
    with forebay.open(data) as file:

        async def work():
            assert await file.aread(0, 100) == content[:100]

        def in_thread():
            try:
                for _ in range(20):
                    asyncio.run(work())
            except BaseException as error:
                failures.append(error)

        others = [asyncio.new_event_loop() for _ in range(50)]
        for loop in others:
            loop.run_until_complete(work())
        threads = [threading.Thread(target=in_thread) for _ in range(8)]
        sys.setswitchinterval(1e-6)
        try:
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        finally:
            sys.setswitchinterval(interval)
            [loop.close() for loop in others]
    assert not failures


def test_descriptors_of_loops_are_closed(data, eventually):
    async def work():
        with forebay.open(data) as file:
            await file.aread(0, 1)

    asyncio.run(work())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(work())

    def closed():
        gc.collect()
        return len(os.listdir("/proc/self/fd")) <= before + 1

    eventually(closed)


def test_a_forked_child_makes_a_loop_of_its_own(data, content):
    from test_forks import in_child

    with forebay.open(data) as file:
        asyncio.run(file.aread(0, 1))
        assert in_child(lambda: asyncio.run(file.aread(5, 5)) == content[5:10]) == "True"

        async def fork_inside():
            await file.aread(0, 1)
            # The child has no running loop; a new loop works.
            return in_child(lambda: asyncio.run(file.aread(5, 5)) == content[5:10])

        assert asyncio.run(fork_inside()) == "True"


def test_without_a_loop_there_is_a_clear_error(data):
    with forebay.open(data) as file:
        call = file.aread(0, 1)
        with pytest.raises(RuntimeError, match="no running event loop"):
            call.send(None)


def test_a_future_that_raises_keeps_no_other_call_waiting(data, content):
    """A signal's handler may raise while the hub sets a future: the results of the calls that ended in the same turn were lost."""
    hub, ended = Hub(), []

    class Raising:
        def done(self):
            return False

        def set_result(self, value):
            ended.append(value)
            raise InterruptedError

    with forebay.open(data, "direct") as file:
        calls = [file._begin_read(hub, Raising, number * 4096, 4096) for number in range(64)]
        left = [number for number, call in enumerate(calls) if call.future is not None]
        poll = select.poll()
        poll.register(hub.fileno(), select.POLLIN)
        while len(ended) < len(left):
            assert poll.poll(30_000), f"{len(ended)} of {len(left)} calls have ended"
            try:
                hub.run()
            except InterruptedError:
                pass
    assert sorted(ended) == sorted(content[number * 4096 :][:4096] for number in left)


def test_an_interrupted_loop(program, tmp_path):
    program(
        """
        import asyncio, os, signal, sys, threading, forebay
        with open(sys.argv[1], "wb") as holes:
            holes.truncate(1 << 40)
        file = forebay.open(sys.argv[1], "direct")
        ranges = [(number << 18, 1) for number in range(300_000)]
        async def work():
            await asyncio.gather(*(file.aread_many(ranges, depth=1, max_gap=0) for _ in range(3)))
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            asyncio.run(work())
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit("not interrupted")
        """,
        tmp_path / "holes",
    )


def test_a_waiting_append_beside_one_of_the_loop(program, tmp_path):
    # A callback of a loop that appended a line to a log hung for ever where an append of a task was under way: that one had the line of
    # appends, and continued with the loop only. An append that was cancelled, as by a timeout, let the next one look for the end while its
    # own bytes were on their way there.
    program(
        """
    import asyncio, sys

    import forebay

    async def main():
        with forebay.open(sys.argv[1], write=True, create=True) as file:
            for _ in range(20):
                first = asyncio.create_task(file.aappend(b"first "))
                second = asyncio.create_task(file.aappend(b"second "))
                await asyncio.sleep(0)
                offset = file.append(b"third ")
                assert sorted([await first, await second, offset])[0] % 19 == 0
            assert file.size == 20 * 19, file.size
            given_up = [asyncio.create_task(file.aappend(b"fourth ")) for _ in range(5)]
            await asyncio.sleep(0)
            for task in given_up:
                task.cancel()
            file.append(b"fifth")

    asyncio.run(main())
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    assert all(data.count(word) == 20 for word in (b"first ", b"second ", b"third ")), data
    assert data[20 * 19 :].replace(b"fourth ", b"") == b"fifth", data
    """,
        tmp_path / "log",
    )


async def test_records_side_by_side_are_all_written(tmp_path, evict):
    # Records of different lengths, written at the same time: whole blocks of 512 bytes were written past the page cache beside others of
    # their page, which the kernel read before and wrote back after them, with the old bytes of the blocks.
    path, size = tmp_path / "records", 4 << 20
    path.write_bytes(bytes(size))
    evict(path)
    with forebay.open(path, "direct", write=True) as file:
        block = file.alignment
        step = max(4096, 2 * block)
        writes = []
        for number, at in enumerate(range(0, size, step)):
            pair = [file.awrite(at, b"b" * block), file.awrite(at + block, b"record")]
            writes += pair if number % 2 else reversed(pair)
        await asyncio.gather(*writes)
        await file.afsync()
    evict(path)
    data = path.read_bytes()
    for at in range(0, size, step):
        assert data[at : at + step].rstrip(b"\0") == b"b" * block + b"record", at
