"""The fsspec file system: fsspec's own suite, differences to its local file system, and zarr on top."""

import asyncio
import errno
import io
import json
import os
import pickle
import tarfile
import zipfile

import pytest

fsspec = pytest.importorskip("fsspec")
import fsspec.tests.abstract as abstract  # noqa: E402

import forebay._batch  # noqa: E402
from conftest import SIZE, known  # noqa: E402
from forebay.fsspec import AsyncForebayFileSystem, ForebayFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return ForebayFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, tmpdir):
        return str(tmpdir)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


@pytest.fixture
def fs():
    return fsspec.filesystem("forebay")


def test_the_name_leads_here(fs, data):
    assert isinstance(fs, ForebayFileSystem)
    with fsspec.open(f"forebay://{data}") as file:
        assert file.read(5)
    assert fs.unstrip_protocol(str(data)) == f"forebay://{data}"
    for path in (f"forebay://{data}", f"forebay:{data}", str(data), data):
        assert fs.exists(path) and fs.info(path)["size"] == SIZE
    assert fs.ls(f"forebay://{data.parent}", detail=False) == [str(data)]
    assert pickle.loads(pickle.dumps(fs)) == fs


def test_a_url_names_a_path_from_the_root(fs, data, monkeypatch, tmp_path):
    """Regression: `datasets` passes URLs through pathlib, which leaves `forebay://tmp/x` of `forebay:///tmp/x`; it was looked for in the
    working directory."""
    monkeypatch.chdir(tmp_path)
    for url in (f"forebay://{data}", f"forebay:/{data}", "forebay://" + str(data).lstrip("/")):
        assert fs._strip_protocol(url) == str(data)
        with fsspec.open(url) as file:
            assert file.read(5)
    assert fs._strip_protocol("forebay://") == "/"
    for relative in ("forebay://./a", "forebay:a", "a", "./a"):
        assert fs._strip_protocol(relative) == str(tmp_path / "a")
    assert fs._strip_protocol("forebay://~/a") == os.path.expanduser("~/a")


def test_the_mode_of_reads_has_a_word_of_its_own(data, content):
    """Regression: it was `mode`, which fsspec.open and pandas pass as "rb", so that no URL could be read in another mode."""
    for read_mode in ("adaptive", "direct", "buffered", "uncached"):
        with fsspec.open(f"forebay://{data}", mode="rb", read_mode=read_mode) as file:
            assert file.fs.read_mode == file._file.mode == read_mode
            assert file.read(10) == content[:10]
        fs = fsspec.filesystem("forebay", read_mode=read_mode)
        assert pickle.loads(pickle.dumps(fs)).read_mode == read_mode
        assert fs.cat_ranges([str(data)], [5], [15]) == [content[5:15]]
    with pytest.raises(ValueError, match="read_mode is 'rb'"):
        ForebayFileSystem(read_mode="rb")
    with pytest.raises(TypeError, match="use read_mode"):
        ForebayFileSystem(mode="direct")


@pytest.mark.parametrize("name", ["tiny", "empty.zip"])
def test_archives_shorter_than_their_end(fs, tmp_path, name):
    """Regression: zipfile seeks to 22 bytes before the end and expects OSError if the file is shorter; it was ValueError."""
    (tmp_path / "tiny").write_bytes(b"hello")
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    with fs.open(str(tmp_path / name)) as file:
        assert zipfile.is_zipfile(file) is (name == "empty.zip")
        for offset, whence in ((-1, 0), (-100, 1), (-100, 2)):
            with pytest.raises(OSError) as caught:
                file.seek(offset, whence)
            assert caught.value.errno == errno.EINVAL
        assert file.seek(-2, 2) + 2 == file.seek(0, 2)


def test_ranges_are_those_of_the_local_file_system(fs, data, tmp_path, content):
    local = fsspec.filesystem("file")
    other = tmp_path / "other"
    other.write_bytes(b"short")
    cases = [
        ([str(data)] * 3, [0, 5, 100], [10, 5, 190]),
        ([str(data), str(other)] * 2, [0, 1, -10, -3], [10, 4, None, None]),
        ([str(data)] * 2, 10, 20),
        ([str(data), str(other)], [None, None], [3, 2]),
        ([str(data)], [SIZE - 4], [SIZE + 10]),
        ([str(other)], [100], [110]),
        ([], [], []),
    ]
    for paths, starts, ends in cases:
        assert fs.cat_ranges(paths, starts, ends) == local.cat_ranges(paths, starts, ends), (paths, starts, ends)
    missing = fs.cat_ranges([str(data), str(tmp_path / "none")], [0, 0], [3, 3])
    assert missing[0] == content[:3] and isinstance(missing[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([str(tmp_path / "none")], [0], [3], on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges([str(data)] * 2, [0], [3, 3])
    for start, end in ((None, None), (5, 10), (-5, None), (-10, -2), (SIZE, SIZE + 1), (10, 5)):
        assert fs.cat_file(str(data), start, end) == content[slice(start, end)]
    with pytest.raises(FileNotFoundError):
        fs.cat_file(str(tmp_path / "none"))
    with pytest.raises(IsADirectoryError):
        fs.cat_file(str(tmp_path))


def test_cat_ranges_is_one_batch(fs, data, batches):
    calls = batches(forebay._batch)
    fs.cat_ranges([str(data)] * 50, list(range(0, 50_000, 1000)), list(range(10, 50_010, 1000)))
    assert calls == [50]


async def test_reads_of_a_loop_are_batches(data, content, tmp_path, batches, monkeypatch):
    calls = batches(forebay._batch)
    fs = AsyncForebayFileSystem(read_mode="direct", asynchronous=True)
    names = [f"forebay://{data}"] * 50
    # Threads have no part in it.
    monkeypatch.setattr(asyncio, "to_thread", None)
    expected = [content[1000 * number :][:10] for number in range(50)]
    found = await asyncio.gather(*(fs._cat_file(name, 1000 * number, 1000 * number + 10) for number, name in enumerate(names)))
    assert found == expected and calls == [50]
    starts = list(range(0, 50_000, 1000))
    assert await fs._cat_ranges(names, starts, [start + 10 for start in starts]) == expected
    assert calls == [50, 50]
    assert await fs._cat_file(str(data), -5) == content[-5:]
    monkeypatch.undo()
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"file {number}")
    found = await fs._cat(f"{tmp_path}/*.txt")
    assert found == {f"{tmp_path}/{number}.txt": f"file {number}".encode() for number in range(5)}
    for path, error in ((tmp_path / "none", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            await fs._cat_file(str(path))
        found = await fs._cat_ranges([str(path), str(data)], 0, 5)
        assert isinstance(found[0], error) and found[1] == content[:5]
        with pytest.raises(error):
            await fs._cat_ranges([str(path)], 0, 5, on_error="raise")
    await fs._pipe_file(str(tmp_path / "new"), b"written")
    assert (await fs._info(str(tmp_path / "new")))["size"] == 7


async def test_a_path_that_no_file_can_have_fails_alone(data, content):
    """The reads that start in one turn of a loop are one batch: all of them raised the ValueError of one."""
    fs = AsyncForebayFileSystem(asynchronous=True)
    reads = fs._cat_file("/a\0b"), fs._cat_file(str(data), 0, 5)
    for found in (
        await asyncio.gather(*reads, return_exceptions=True),
        await fs._cat_ranges(["/a\0b", str(data)], 0, 5),
        fs.sync_fs.cat_ranges(["/a\0b", str(data)], 0, 5),
    ):
        assert isinstance(found[0], ValueError) and found[1] == content[:5]


async def test_a_bound_that_is_no_number_fails_alone(data, content):
    """The same for a bound that was computed by a division: all reads of the turn raised its TypeError."""
    fs = AsyncForebayFileSystem(asynchronous=True)
    reads = fs._cat_file(str(data), 1.5), fs._cat_file(str(data), 0, 5)
    for found in (
        await asyncio.gather(*reads, return_exceptions=True),
        await fs._cat_ranges([str(data)] * 2, [1.5, 0], 5),
        fs.sync_fs.cat_ranges([str(data)] * 2, [1.5, 0], 5),
    ):
        assert isinstance(found[0], TypeError) and found[1] == content[:5]


@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "u4"])
def test_bounds_may_be_numbers_of_numpy(fs, data, content, dtype):
    """Ranges by an array of uint64, of which one began behind the end of its file or had no bytes, raised OverflowError: its length was the
    difference of two numbers without a sign."""
    numpy = pytest.importorskip("numpy")
    starts = numpy.array([0, SIZE - 4, SIZE + 50, 9], dtype)
    ends = numpy.array([10, SIZE + 10, SIZE + 60, 5], dtype)
    expected = [content[:10], content[-4:], b"", b""]
    assert fs.cat_ranges([str(data)] * 4, starts, ends) == expected
    assert [fs.cat_file(str(data), *bounds) for bounds in zip(starts, ends)] == expected
    assert fs.cat_ranges([str(data)], starts[1:2], None) == [content[-4:]]


async def test_a_long_range_of_a_file_that_is_cut_ends_at_its_end(tmp_path):
    """Another program cuts the file after its length was read: the range ends where the file does now, and the others are read."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    cut.write_bytes(bytes(5 << 20))
    whole.write_bytes(b"bytes")
    batch = forebay._batch.Batch([(str(cut), None, None), (str(whole), None, None)], "adaptive")
    os.truncate(cut, 4096)
    assert await batch.aread() == [bytes(4096), b"bytes"]


async def test_long_ranges_are_read_by_themselves(fs, tmp_path, batches):
    calls = batches(forebay._batch)
    content = known(0, 10 << 20)
    (tmp_path / "long").write_bytes(content)
    bounds = [(0, 4 << 20), (5, (4 << 20) + 4), (5, (4 << 20) + 6), (7, None), (None, None), (-(4 << 20), None), (3, 9)]
    expected = [content[slice(*each)] for each in bounds]
    names, starts, ends = [f"{tmp_path}/long"] * len(bounds), [each[0] for each in bounds], [each[1] for each in bounds]
    assert fs.cat_ranges(names, starts, ends) == expected
    loop = AsyncForebayFileSystem(asynchronous=True)
    assert await loop._cat_ranges(names, starts, ends) == expected
    assert await asyncio.gather(*(loop._cat_file(names[0], *each) for each in bounds * 10)) == expected * 10
    assert calls == [2, 2, 20]


async def test_few_files_are_open_for_long_ranges(tmp_path, monkeypatch):
    """Each turn of a loop had a limit of its own: tasks that start one after the other opened all of their files, until EMFILE."""
    is_open, most, end = 0, 0, asyncio.Event()

    class Waits:
        def __init__(self, path, mode):
            pass

        def __enter__(self):
            nonlocal is_open, most
            is_open += 1
            most = max(most, is_open)
            return self

        def __exit__(self, *_):
            nonlocal is_open
            is_open -= 1

        async def aread(self, start, length):
            await end.wait()
            return b"bytes"

    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", 5 << 20)
    monkeypatch.setattr(forebay._batch, "open_to_read", Waits)
    fs = AsyncForebayFileSystem(asynchronous=True)
    tasks = []
    for _ in range(40):
        tasks.append(asyncio.create_task(fs._cat_file(f"{tmp_path}/long")))
        # Turns enough for the task to open its file.
        for _ in range(10):
            await asyncio.sleep(0)
    end.set()
    assert await asyncio.gather(*tasks) == [b"bytes"] * 40
    assert (is_open, most) == (0, 16)


def test_the_asynchronous_file_system_works_without_a_loop(data, content):
    fs = AsyncForebayFileSystem(read_mode="buffered", asynchronous=False)
    assert fs.cat_file(str(data), 5, 15) == content[5:15]
    assert fs.cat_ranges([str(data)] * 2, [0, 7], [3, 9]) == [content[:3], content[7:9]]
    again = pickle.loads(pickle.dumps(fs))
    assert again.sync_fs.read_mode == "buffered" and again.cat_file(str(data), 0, 5) == content[:5]


def test_open_files(fs, data, content, tmp_path):
    with fs.open(str(data)) as file:
        assert file.read(10) == content[:10]
        file.seek(1_000_000)
        assert file.read(100) == content[1_000_000:1_000_100]
        assert file.tell() == 1_000_100
        again = pickle.loads(pickle.dumps(file))
        assert again.read(5) == content[1_000_100:1_000_105]
        again.close()
        file.seek(-3, 2)
        assert file.read() == content[-3:]
        assert file.readable() and not file.writable()
        assert os.fstat(file.fileno()).st_size == SIZE
    with fs.open(str(data), "r", encoding="latin-1") as text:
        assert text.read(3) == content[:3].decode("latin-1")
    with pytest.raises(FileNotFoundError):
        fs.open(str(tmp_path / "none"))
    with pytest.raises(IsADirectoryError):
        fs.open(str(tmp_path))
    with fs.open(str(tmp_path / "new"), "wb") as file:
        file.write(b"written")
    with fs.open(str(tmp_path / "new"), "ab") as file:
        file.write(b" more")
    assert fs.cat(str(tmp_path / "new")) == b"written more"
    with fs.transaction:
        with fs.open(str(tmp_path / "later"), "wb") as file:
            file.write(b"later")
        assert not fs.exists(str(tmp_path / "later"))
    assert fs.cat(str(tmp_path / "later")) == b"later"


def test_the_descriptor_of_an_open_file_reads_from_its_position(fs, data, content):
    """numpy.fromfile, and a program that had an open file as its standard input, read by its descriptor: one with O_DIRECT, at the start of
    the file. They failed, or found nothing."""
    with fs.open(str(data)) as file:
        for position in (1001, 5):
            file.seek(position)
            assert os.read(file.fileno(), 100) == content[position : position + 100]
            assert file.tell() == position and file.read(10) == content[position : position + 10]
    with pytest.raises(ValueError, match="is closed"):
        file.fileno()


def test_readers_of_tables(fs, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"number": list(range(10_000)), "text": [str(number) for number in range(10_000)]})
    with fs.open(str(tmp_path / "table.parquet"), "wb") as file:
        parquet.write_table(table, file)
    with fs.open(str(tmp_path / "table.parquet")) as file:
        assert parquet.read_table(file, columns=["text"])["text"].to_pylist()[-1] == "9999"
    assert parquet.read_table(str(tmp_path / "table.parquet"), filesystem=fs).equals(table)
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(f"forebay://{tmp_path}/table.parquet")
    assert frame["number"].sum() == sum(range(10_000))


def test_dask_reads_by_it(fs, tmp_path, content):
    bag = pytest.importorskip("dask.bag")
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"line {number}\n" * 1000)
    lines = bag.read_text(f"forebay://{tmp_path}/*.txt", blocksize=2000)
    # Each block is a task: in threads of this process, and in separate processes.
    assert lines.npartitions > 5
    for scheduler in ("threads", "processes"):
        counted = dict(lines.frequencies().compute(scheduler=scheduler))
        assert counted == {f"line {number}\n": 1000 for number in range(5)}


def test_a_file_without_a_size_is_read_to_its_end():
    with open("/proc/version", "rb") as file:
        expected = file.read()
    fs = fsspec.filesystem("forebay")
    assert fs.cat_file("/proc/version") == expected
    assert fs.cat_ranges(["/proc/version"] * 2, [None, 0], [None, 5])[0] == expected
    with fs.open("/proc/version") as file:
        assert file.read(5) == expected[:5]
        assert file.read() == expected[5:]


def test_references_as_kerchunk_writes_them(data, content):
    references = {
        "array/0": [f"forebay://{data}", 10, 20],
        "array/1": [str(data), 300_000, 5],
        "inline": "text",
        "whole": [str(data)],
    }
    found = fsspec.filesystem("reference", fo={"version": 1, "refs": references}, remote_protocol="forebay")
    assert found.cat(["array/0", "array/1", "inline"]) == {
        "array/0": content[10:30],
        "array/1": content[300_000:300_005],
        "inline": b"text",
    }
    assert found.cat("whole") == content
    with found.open("array/0") as file:
        assert file.read() == content[10:30]


def test_references_that_kerchunk_writes(tmp_path):
    """An HDF5 file is scanned through forebay://, and read as a group of zarr by the references that this gave."""
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    zarr = pytest.importorskip("zarr", minversion="3.0")
    hdf = pytest.importorskip("kerchunk.hdf")
    values = numpy.arange(60_000, dtype="f4").reshape(200, 300)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("group/values", data=values, chunks=(20, 60))
        file.create_dataset("packed", data=values, chunks=(50, 300), compression="gzip")
    scan = hdf.SingleHdf5ToZarr(f"forebay://{tmp_path}/file.h5", inline_threshold=0)
    (tmp_path / "references.json").write_text(json.dumps(scan.translate()))
    scan.close()
    options = {"fo": f"forebay://{tmp_path}/references.json", "remote_protocol": "forebay"}
    group = zarr.open_group("reference://", mode="r", storage_options=options, zarr_format=2)
    assert (group["group/values"][5:50, 70:200] == values[5:50, 70:200]).all()
    assert (group["packed"][:] == values).all()
    assert "forebay" in group.store.fs.fss


def test_paths_of_universal_pathlib(data, content):
    """Regression: universal_pathlib warned that it did not know the file system."""
    upath = pytest.importorskip("upath")
    from forebay.upath import ForebayPath

    path = upath.UPath(f"forebay://{data}", read_mode="direct")
    assert type(path) is ForebayPath
    assert path.read_bytes() == content and path.fs.read_mode == "direct"
    assert upath.UPath(f"forebay:/{data}").read_bytes() == content, "a slash less"
    assert path.name == data.name and path.stat().st_size == SIZE
    assert [found.name for found in path.parent.glob("*.bin")] == [data.name]
    assert (path.parent / data.name).exists() and not path.with_suffix(".none").exists()
    again = pickle.loads(pickle.dumps(path))
    assert type(again) is ForebayPath and again.read_bytes() == content


def test_shards_of_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    from webdataset.gopen import gopen

    import forebay.webdataset  # noqa: F401  (it registers the scheme)

    with gopen(f"forebay://{tmp_path}/shard.tar", "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for number in range(2000):
            info = tarfile.TarInfo(f"{number:04}.bin")
            info.size = number * 7
            archive.addfile(info, io.BytesIO(known(number, number * 8)))
    # The second one has a slash less, as pathlib writes it.
    for url in (f"forebay://{tmp_path}/shard.tar", f"forebay:/{tmp_path}/shard.tar"):
        samples = webdataset.WebDataset(url, shardshuffle=False)
        for number, sample in enumerate(samples):
            assert sample["__key__"] == f"{number:04}" and sample["bin"] == known(number, number * 8), number
        assert number == 1999
    with pytest.raises(FileNotFoundError):
        gopen(f"forebay://{tmp_path}/none")
