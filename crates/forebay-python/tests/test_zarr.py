"""zarr's own tests of stores: by way of fsspec, and of the store."""

import asyncio
import json
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("fsspec")
zarr = pytest.importorskip("zarr", minversion="3.0")
pytest.importorskip("pytest_asyncio")
numpy = pytest.importorskip("numpy")
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # noqa: E402
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest  # noqa: E402
from zarr.core.buffer import cpu  # noqa: E402
from zarr.storage import FsspecStore, LocalStore  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

import forebay._batch  # noqa: E402
import system_calls  # noqa: E402
from forebay.fsspec import AsyncForebayFileSystem, ForebayFileSystem  # noqa: E402
from forebay.zarr import ForebayStore  # noqa: E402


class TestForebayStore(StoreTests[FsspecStore, cpu.Buffer]):
    store_cls = FsspecStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        fs = AsyncFileSystemWrapper(ForebayFileSystem(auto_mkdir=True), asynchronous=True)
        return {"fs": fs, "path": str(tmp_path / "store")}

    @pytest.fixture
    async def store(self, store_kwargs):
        return self.store_cls(**store_kwargs)

    async def set(self, store, key, value):
        with open(f"{store.path}/{key}" if self._parent(store, key) else "", "wb") as file:
            file.write(value.to_bytes())

    async def get(self, store, key):
        with open(f"{store.path}/{key}", "rb") as file:
            return self.buffer_cls.from_bytes(file.read())

    @staticmethod
    def _parent(store, key):
        import os

        os.makedirs(os.path.dirname(f"{store.path}/{key}"), exist_ok=True)
        return True

    def test_store_repr(self, store):
        assert "FsspecStore" in repr(store)

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_partial_writes(self, store):
        assert not store.supports_partial_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


class TestAsynchronousForebayStore(TestForebayStore):
    @pytest.fixture
    def store_kwargs(self, tmp_path):
        fs = AsyncForebayFileSystem(auto_mkdir=True, asynchronous=True)
        return {"fs": fs, "path": str(tmp_path / "store")}


def test_an_array(tmp_path):
    path = f"forebay://{tmp_path}/array"
    values = numpy.arange(10_000).reshape(100, 100)
    array = zarr.create_array(path, shape=values.shape, chunks=(10, 25), dtype=values.dtype, storage_options={"auto_mkdir": True})
    array[:] = values
    again = zarr.open_array(path, mode="r")
    assert (again[:] == values).all() and (again[5:17, 3:80:7] == values[5:17, 3:80:7]).all()


class TestForebayStoreOfZarr(StoreTests[ForebayStore, cpu.Buffer]):
    store_cls = ForebayStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        return {"root": str(tmp_path)}

    async def set(self, store, key, value):
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    async def get(self, store, key):
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    def test_store_repr(self, store):
        assert repr(store) == f"ForebayStore('file://{store.root}')"

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_partial_writes(self, store):
        assert not store.supports_partial_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


@pytest.mark.parametrize("read_mode", ["adaptive", "direct", "buffered"])
def test_arrays_in_a_store(tmp_path, read_mode):
    values = numpy.arange(40_000, dtype="i4").reshape(200, 200)
    local = zarr.storage.LocalStore(tmp_path)
    for name, shards in (("plain", None), ("sharded", (100, 100))):
        array = zarr.create_array(
            local, name=name, shape=values.shape, chunks=(10, 10), shards=shards, dtype=values.dtype, fill_value=7
        )
        array[:150] = values[:150]
    store = ForebayStore(tmp_path, read_only=True, read_mode=read_mode)
    expected = values.copy()
    expected[150:] = 7
    for name in ("plain", "sharded"):
        array = zarr.open_array(store, path=name, mode="r")
        assert (array[:] == expected).all()
        assert (array[3:170:7, 90:103] == expected[3:170:7, 90:103]).all()
        assert (array.oindex[[0, 55, 199], [1, 101]] == expected[[0, 55, 199]][:, [1, 101]]).all()
    assert pickle.loads(pickle.dumps(store)).read_mode == read_mode


async def test_gets_of_one_turn_are_one_batch(tmp_path, batches):
    calls = batches(forebay._batch)
    prototype = cpu.buffer_prototype
    for number in range(50):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 1000)
    store = await ForebayStore.open(tmp_path, read_only=True)
    found = await asyncio.gather(
        *(store.get(str(number), prototype, RangeByteRequest(number, number + 9)) for number in range(60))
    )
    assert [value and value.to_bytes() for value in found] == [bytes([number]) * 9 for number in range(50)] + [None] * 10
    assert calls == [50]
    # A cancelled task does not affect the others.
    tasks = [asyncio.ensure_future(store.get(str(number), prototype)) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [value.to_bytes() for value in found[::2]] == [bytes(1000), bytes([2]) * 1000]


async def test_parts_of_a_value_are_one_batch(tmp_path, batches):
    calls = batches(forebay._batch)
    prototype = cpu.buffer_prototype
    (tmp_path / "shard").write_bytes(bytes(range(250)) * 4)
    store = await ForebayStore.open(tmp_path, read_only=True)
    ranges = [RangeByteRequest(10 * number, 10 * number + 5) for number in range(90)]
    ranges += [None, OffsetByteRequest(990), SuffixByteRequest(3), SuffixByteRequest(0), RangeByteRequest(995, 2000)]
    whole = bytes(range(250)) * 4
    expected = [whole[10 * number :][:5] for number in range(90)] + [whole, whole[990:], whole[-3:], b"", whole[995:]]
    groups = [group async for group in store.get_ranges("shard", ranges, prototype=prototype, max_gap_bytes=0)]
    assert calls == [len(ranges) - 1], "all that have bytes"
    assert [value.to_bytes() for group in groups for _, value in sorted(group)] == expected
    assert [value.to_bytes() for _, value in store.get_ranges_sync("shard", ranges, prototype=prototype)] == expected
    assert [store.get_sync("shard", byte_range=byte_range).to_bytes() for byte_range in ranges] == expected
    assert store.get_sync("none") is None and store.get_sync("shard/none") is None
    with pytest.raises(BaseExceptionGroup) as caught:
        store.get_ranges_sync("none", ranges, prototype=prototype)
    assert caught.value.split(FileNotFoundError)[1] is None
    with pytest.raises(BaseExceptionGroup):
        async for _ in store.get_ranges("none", ranges, prototype=prototype):
            pass
    assert [group async for group in store.get_ranges("shard", [], prototype=prototype)] == [[]]


READS = """
    import ctypes, sys
    import numpy, zarr
    from forebay.zarr import ForebayStore
    from zarr.storage import LocalStore

    name, folder, mark = sys.argv[1:]
    store = {"forebay": ForebayStore, "file": LocalStore}[name](folder, read_only=True)
    plain, sharded = (zarr.open_array(store, path=path, mode="r") for path in ("plain", "sharded"))
    syscall = ctypes.CDLL(None).syscall
    for read, first, step in ((lambda: plain[:].ravel(), 0, 1), (lambda: sharded[5 :: 34 * 8192], 5, 34 * 8192)):
        read()
        syscall(int(mark))
        values = read()
        syscall(int(mark))
        assert (values == numpy.arange(len(values), dtype="i4") * step + first).all()
"""


def test_system_calls_of_chunks(tmp_path):
    """All 64 chunks of an array, and of each of four shards 16 inner chunks, which lie further apart than ranges that zarr merges.
    A read before opens the files: they stay open."""
    local = LocalStore(tmp_path)
    for name, shape, chunks, shards in (
        ("plain", (64, 4096), (1, 4096), None),
        ("sharded", (4 * 544 * 8192,), (8192,), (544 * 8192,)),
    ):
        array = zarr.create_array(
            local, name=name, shape=shape, chunks=chunks, shards=shards, dtype="i4", compressors=None, fill_value=-1
        )
        array[:] = numpy.arange(array.size, dtype="i4").reshape(shape)
    counts = {}
    for name in ("forebay", "file"):
        done = subprocess.run(
            [sys.executable, system_calls.__file__, textwrap.dedent(READS), name, tmp_path, str(system_calls.MARK)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode == system_calls.REFUSED:
            pytest.skip("ptrace(2), which counts the system calls, is refused here")
        assert done.returncode == 0, done.stderr
        counts[name] = json.loads(done.stdout)
    (plain, sharded), (local_plain, local_sharded) = counts["forebay"], counts["file"]
    assert 0 < plain <= local_plain, counts
    assert 0 < sharded <= 0.3 * local_sharded, counts


def open_below(folder):
    """Returns the names of the open files below a folder, also of those that were removed."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    return [path for path in found if path.startswith(f"{folder}/")]


async def test_files_that_stay_open_are_those_of_their_names(tmp_path, eventually):
    prototype = cpu.buffer_prototype
    store = await ForebayStore.open(tmp_path)
    path = pathlib.Path(tmp_path, "key")

    async def check(content):
        for byte_range, expected in ((None, content), (OffsetByteRequest(1), content[1:])):
            assert (await store.get("key", prototype, byte_range)).to_bytes() == expected
            assert store.get_sync("key", byte_range=byte_range).to_bytes() == expected
            [(_, value)] = store.get_ranges_sync("key", [byte_range], prototype=prototype)
            assert value.to_bytes() == expected

    for content in (b"a file", b"another file in its place", b"a third"):
        # As another program replaces it.
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", path)
        await check(content)
    path.write_bytes(b"the same file, written again")
    await check(b"the same file, written again")
    assert open_below(tmp_path)
    path.unlink()
    assert await store.get("key", prototype) is None and store.get_sync("key") is None
    path.mkdir()
    assert await store.get("key", prototype) is None and store.get_sync("key") is None
    await store.delete_dir("key")
    eventually(lambda: not open_below(tmp_path))
    # A value that was replaced or removed by the store itself keeps no space.
    await store.set("key", cpu.Buffer.from_bytes(b"one"))
    await check(b"one")
    await store.set("key", cpu.Buffer.from_bytes(b"another"))
    eventually(lambda: not open_below(tmp_path))
    await check(b"another")
    store.set_sync("key", cpu.Buffer.from_bytes(b"a third"))
    eventually(lambda: not open_below(tmp_path))
    await check(b"a third")
    store.delete_sync("key")
    eventually(lambda: not open_below(tmp_path))


async def test_few_files_stay_open(tmp_path, eventually):
    prototype = cpu.buffer_prototype
    store = await ForebayStore.open(tmp_path, read_only=True)
    for number in range(700):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    for number in range(700):
        assert (await store.get(str(number), prototype)).to_bytes() == b"%d" % number
    eventually(lambda: len({path for path in open_below(tmp_path)}) <= 256)
    assert pickle.loads(pickle.dumps(store)) == store
    store.close()
    eventually(lambda: not open_below(tmp_path))
