"""File objects over a file: each result is that of io.BytesIO, and the libraries that accept one read through it."""

import csv
import gzip
import io
import os
import pickle
import shutil
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from conftest import SIZE, known
from test_forks import in_child

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
# On both sides of the bytes of a first read and of a block.
sizes = st.integers(-2, 300) | st.integers(60_000, 70_000) | st.integers(0, SIZE + 10)
calls = st.one_of(
    st.tuples(st.just("read"), sizes),
    st.tuples(st.just("readinto"), sizes.map(abs)),
    st.tuples(st.just("readline"), st.integers(-1, 300)),
    st.tuples(st.just("readall")),
    st.tuples(st.just("peek"), sizes),
    st.tuples(st.just("seek"), sizes.map(abs), st.just(0)),
    st.tuples(st.just("seek"), st.integers(-100_000, 100_000), st.just(1)),
    st.tuples(st.just("seek"), st.integers(-100_000, 10), st.just(2)),
)


@many
@given(calls=st.lists(calls, max_size=25), block_size=st.sampled_from([1, 4096, 10_000, 1 << 20]))
def test_any_calls_give_the_bytes_of_the_file(data, content, mode, calls, block_size):
    expected = io.BytesIO(content)
    with forebay.open(data, mode).io(block_size) as file:
        for name, *arguments in calls:
            place = expected.tell()
            if name == "peek":
                found = file.peek(*arguments)
                assert content[place:].startswith(found) and (found or place >= SIZE)
            elif name == "readinto":
                theirs, ours = bytearray(b"\xee" * arguments[0]), bytearray(b"\xee" * arguments[0])
                assert file.readinto(ours) == expected.readinto(theirs)
                assert ours == theirs
            elif name == "seek" and (0, place, SIZE)[arguments[1]] + arguments[0] < 0:
                with pytest.raises(OSError):
                    file.seek(*arguments)
            elif name == "readall":
                assert file.readall() == expected.read()
            else:
                assert getattr(file, name)(*arguments) == getattr(expected, name)(*arguments), (name, arguments)
            assert file.tell() == expected.tell()


def test_a_scan_that_failed_is_begun_anew(data, content):
    """A scan says that it ended once it has failed, which would be the end of the file."""
    with forebay.open(data).io(8192) as file:
        assert file.read(200_000) == content[:200_000]

        def failing():
            raise OSError(5, "a failure of the device")
            yield

        file._scan = failing()
        with pytest.raises(OSError, match="device"):
            file.read(200_000)
        assert file.tell() == 200_000, "a read that failed took nothing"
        assert file.read(200_000) == content[200_000:400_000]


def test_places_and_sizes_may_be_numbers_of_numpy(data, content):
    """A position that came from an array of offsets was a number of its type: it began again at 0 beyond the largest of these."""
    numpy = pytest.importorskip("numpy")
    with forebay.open(data).io() as file:
        assert file.seek(numpy.uint8(200)) == 200 and file.read(numpy.uint8(100)) == content[200:300]
        assert file.tell() == 300 and file.read(10) == content[300:310]
        assert file.seek(numpy.int16(-20), 1) == 290
        assert file.seek(100_000) and file.seek(numpy.int8(5), 1) == 100_005
        assert file.seek(numpy.int8(-5), 2) == SIZE - 5 and file.read() == content[-5:]
        file.seek(0)
        assert file.readline(numpy.uint8(7)) == io.BytesIO(content).readline(7)
        for call in (file.seek, file.read):
            with pytest.raises(TypeError):
                call(1.5)


def test_it_is_closed_as_files_are(data, content):
    with forebay.open(data) as owner:
        with owner.io() as file:
            assert file.readable() and file.seekable() and not file.writable() and not file.closed
            assert file.name == str(data) and file.mode == "rb"
            assert file.read(5) == content[:5]
            with pytest.raises(io.UnsupportedOperation):
                file.fileno()
        assert file.closed
        file.close()
        for call in (file.read, file.readall, file.tell, file.peek, file.readable, lambda: file.seek(0), lambda: file.readinto(bytearray(1))):
            with pytest.raises(ValueError, match="closed"):
                call()
        assert owner.read(5, 5) == content[5:10], "the file is open still"
        other = owner.io()
    with pytest.raises(ValueError, match="is closed"):
        other.read(1)
    with pytest.raises(ValueError, match="block_size"):
        forebay.open(data).io(0)
    for offset, whence, error in ((-1, 0, OSError), (-1, 1, OSError), (-SIZE - 1, 2, OSError), (0, 3, ValueError)):
        with forebay.open(data).io() as file, pytest.raises(error):
            file.seek(offset, whence)


def test_the_descriptor_goes_with_the_file_object(data, eventually):
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with forebay.open(data).io() as file:
            file.read(100_000)
    # Files that were only dropped are closed in the background.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 5)


def test_a_child_reads_on(data, content, mode):
    """What was read ahead lies in I/O memory, which a child does not inherit."""
    with forebay.open(data, mode).io(32 << 10) as file:
        for part in range(0, 200_000, 20_000):
            assert file.read(20_000) == content[part : part + 20_000]

        def work():
            assert file.read(50_000) == content[200_000:250_000]
            return "all"

        assert in_child(work) == "all"
        assert file.read(50_000) == content[200_000:250_000]


def test_it_is_pickled_with_its_position(data, content):
    with forebay.open(data, "direct").io(5000) as file:
        file.seek(777)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.tell() == 777 and again.read(10) == content[777:787]
        assert file.read(10) == content[777:787]


def test_a_file_without_a_size_is_read_to_its_end():
    with open("/proc/version", "rb") as file:
        expected = file.read()
    with forebay.open("/proc/version").io() as file:
        assert file.read(5) == expected[:5]
        assert file.read() == expected[5:]
        assert file.read() == b""


@pytest.fixture
def stream(tmp_path, mode):
    """Opens a file object over a file that a function wrote."""
    opened = []

    def stream(write):
        path = tmp_path / "file"
        with open(path, "wb") as file:
            write(file)
        opened.append(forebay.open(path, mode).io())
        return opened[-1]

    yield stream
    for file in opened:
        file.close()


def test_arrays_of_numpy(stream):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1_000_003, dtype="f8").reshape(1, -1)
    assert (numpy.load(stream(lambda file: numpy.save(file, array))) == array).all()
    with numpy.load(stream(lambda file: numpy.savez(file, a=array, b=array[:, :7]))) as several:
        assert (several["b"] == array[:, :7]).all() and (several["a"] == array).all()
    # Through a buffer numpy would ask for the descriptor, which may be one of O_DIRECT.
    assert (numpy.load(io.BufferedReader(stream(lambda file: numpy.save(file, array)))) == array).all()


def test_archives(stream):
    members = {f"folder/{number}": known(number * 1000, number * 3000) for number in range(100)}

    def write_zip(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    with zipfile.ZipFile(stream(write_zip)) as archive:
        assert archive.testzip() is None
        for name in sorted(members, reverse=True):
            assert archive.read(name) == members[name]

    def write_tar(file, mode="w"):
        with tarfile.open(fileobj=file, mode=mode) as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    for writing, reading in (("w", "r:"), ("w:gz", "r:gz"), ("w", "r|"), ("w:gz", "r|*"), ("w", "r")):
        with tarfile.open(fileobj=stream(lambda file: write_tar(file, writing)), mode=reading) as archive:
            found = {member.name: archive.extractfile(member).read() for member in archive}
            assert found == members, reading
    not_an_archive = stream(lambda file: file.write(b"hello"))
    assert not zipfile.is_zipfile(not_an_archive) and not_an_archive.seek(0) == 0
    with pytest.raises(tarfile.ReadError):
        tarfile.open(fileobj=not_an_archive)


def test_pickles(stream):
    numpy = pytest.importorskip("numpy")
    values = {"list": list(range(100_000)), "array": numpy.arange(2_000_000), "text": "text" * 10}

    def write(file):
        for _ in range(2):
            pickle.dump(values, file, protocol=5)

    file = stream(write)
    for _ in range(2):
        found = pickle.load(file)
        assert (found.pop("array") == values["array"]).all()
        assert found == {name: value for name, value in values.items() if name != "array"}
    with pytest.raises(EOFError):
        pickle.load(file)


def test_text_and_streams(stream, tmp_path):
    lines = [f"{number},line of text\n" for number in range(50_000)]
    file = stream(lambda file: file.write("".join(lines).encode()))
    assert list(map(bytes.decode, file)) == lines
    file.seek(0)
    # TextIOWrapper asks for the whole of a chunk by read1, which a raw file does not have.
    with io.TextIOWrapper(io.BufferedReader(file), newline="") as text:
        assert [f"{number},{words}\n" for number, words in csv.reader(text)] == lines
    packed = stream(lambda file: file.write(gzip.compress("".join(lines).encode())))
    assert gzip.open(packed).read().decode() == "".join(lines)
    packed.seek(0)
    with open(tmp_path / "copy", "wb") as copy:
        shutil.copyfileobj(packed, copy)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()


def test_images(stream):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.effect_noise((640, 480), 50).convert("RGB")
    for form in ("PNG", "TIFF", "BMP"):
        with image.open(stream(lambda file: picture.save(file, form))) as found:
            assert found.format == form and found.tobytes() == picture.tobytes()


@pytest.mark.torch
def test_checkpoints_of_torch(stream):
    torch = pytest.importorskip("torch")
    tensors = {"weights": torch.arange(1_000_000, dtype=torch.float32), "step": torch.tensor(5)}
    for is_zip in (True, False):
        found = torch.load(stream(lambda file: torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)))
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
