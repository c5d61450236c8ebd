"""Opening, reading, writing and closing."""

import array
import contextlib
import errno
import mmap
import os
import pickle
import threading
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from conftest import SIZE, known
from forebay._calls import Calls

slow_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def test_a_file_says_what_it_is(data):
    with forebay.open(data) as file:
        assert isinstance(file, forebay.File)
        assert file.size == SIZE
        assert os.fspath(file.path) == os.fspath(data)
        assert (file.mode, file.writable, file.closed) == ("adaptive", False, False)
        assert repr(file) == f'<forebay.File "{data}", adaptive>'
        assert os.fstat(file.fileno()).st_ino == os.stat(data).st_ino
        assert file.alignment >= 1
    assert file.closed
    assert repr(file).endswith(", adaptive, closed>")
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.read(0, 1)
    with pytest.raises(ValueError, match="is closed"):
        with file:
            pass


@slow_fixture
@given(offset=st.integers(0, SIZE + 5000), length=st.integers(0, 300_000) | st.none())
def test_reads_are_those_of_the_file(data, content, mode, offset, length):
    with forebay.open(data, mode) as file:
        expected = content[offset:] if length is None else content[offset : offset + length]
        assert file.read(offset, length) == expected
        room = bytearray(b"\xff" * (1000 if length is None else length))
        count = file.read_into(offset, room)
        expected = content[offset : offset + len(room)]
        assert count == len(expected) and room[:count] == expected


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    """A file of some requests of every size, and a bit."""
    path = tmp_path_factory.mktemp("long") / "data.bin"
    path.write_bytes(known(0, (13 << 20) + 777))
    return path


@pytest.mark.parametrize("is_cold", [True, False])
def test_long_reads(long, mode, evict, is_cold):
    content = long.read_bytes()
    with forebay.open(long, mode) as file:
        for offset, length in ((0, len(content)), (1, 9 << 20), (4096, 5 << 20), (3 << 20, 50 << 20), (777, (4 << 20) + 1)):
            if is_cold:
                evict(long)
            expected = content[offset : offset + length]
            assert file.read(offset, length) == expected
            memory = forebay.allocate(length + 4096)
            for skip in (0, offset % 4096):
                room = memoryview(memory)[skip : skip + length]
                assert file.read_into(offset, room) == len(expected)
                assert room[: len(expected)] == expected
        assert file.read_into(len(content) + 5, bytearray(5 << 20)) == 0
        assert file.read(len(content) + 5, 5 << 20) == b""


def test_long_reads_of_a_warm_file_come_from_the_page_cache(long):
    """The core looks for at most 4 MiB in the page cache, so a model that was in memory was read from the device each time."""
    room = forebay.allocate(13 << 20)
    served = 0
    # The kernel may find a page busy once; then the file is left alone for a while.
    for _ in range(20):
        long.read_bytes()
        with forebay.open(long) as file:
            before = forebay.stats()["page_cache"]["bytes"]
            assert file.read_into(0, room) == 13 << 20
            assert len(file.read(5, 12 << 20)) == 12 << 20
            served = max(served, forebay.stats()["page_cache"]["bytes"] - before)
        if served == 25 << 20:
            break
    if any("adaptive" in part["what"] for part in forebay.doctor()["degraded"]):
        pytest.skip("this file system has no page cache that can be asked")
    assert served == 25 << 20


def test_a_file_that_becomes_shorter_during_a_long_read(tmp_path):
    path = tmp_path / "shrinks"
    stop = threading.Event()
    path.write_bytes(b"a" * (9 << 20))

    def change():
        while not stop.is_set():
            os.truncate(path, 5 << 20)
            os.truncate(path, 9 << 20)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with forebay.open(path) as file:
            for _ in range(30):
                found = file.read(0)
                assert 5 << 20 <= len(found) <= 9 << 20
                # New bytes of a file are zeros; those of memory could be anything.
                assert not found.strip(b"a\0")
    finally:
        stop.set()
        thread.join()


def test_every_kind_of_buffer_is_a_destination(data, content, mode):
    numpy = pytest.importorskip("numpy")
    with forebay.open(data, mode) as file:
        for make in (
            lambda: bytearray(5000),
            lambda: memoryview(bytearray(5000)),
            lambda: array.array("Q", bytes(5000)),
            lambda: mmap.mmap(-1, 5000),
            lambda: numpy.zeros((50, 100), "u1"),
            lambda: numpy.zeros(1250, "f4"),
            lambda: forebay.allocate(5000),
        ):
            out = make()
            assert file.read_into(777, out) == 5000
            assert bytes(memoryview(out).cast("B") if not isinstance(out, mmap.mmap) else out) == content[777:5777]


def test_aligned_memory_is_read_into_without_a_copy(data, content, evict):
    memory = forebay.allocate(64 << 10)
    with forebay.open(data, "direct") as file:
        evict(data)
        assert file.read_into(4096, memory) == 64 << 10
        assert bytes(memory) == content[4096 : 4096 + (64 << 10)]
    assert len(memory) == 64 << 10 and "65536" in repr(memory)
    with pytest.raises(ValueError, match="negative"):
        forebay.allocate(-1)


class Tensor:
    """Memory without the buffer protocol, as torch's tensors are."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self):
        return self.array.__dlpack__()


def test_tensors_are_destinations_by_dlpack(data, content):
    numpy = pytest.importorskip("numpy")
    import sys

    array = numpy.zeros((10, 100), "i4")
    count = sys.getrefcount(array)
    with forebay.open(data) as file:
        assert file.read_into(13, Tensor(array)) == 4000
        assert array.tobytes() == content[13:4013]
        part = numpy.zeros((10, 100), "i4")[2:5]
        assert file.read_many([(5, 1000), (99, 200)], Tensor(part)).array is part
        assert part.tobytes() == content[5:1005] + content[99:299]
        with pytest.raises(BufferError, match="contiguous"):
            file.read_into(0, Tensor(array[:, ::2]))
        with pytest.raises(ValueError, match="not in the memory of this machine"):
            file.read_into(0, Tensor(array, (2, 0)))
    assert sys.getrefcount(array) == count, "the exports have ended"


@pytest.mark.parametrize("give_up", [True, False])
def test_a_tensor_lives_until_its_call_has_ended(data, content, eventually, give_up):
    """Also while the file is closed, and if nothing else refers to the tensor or the call."""
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(1_000_000, "u1")
    alive = weakref.ref(array)
    calls = Calls()
    with forebay.open(data, "direct") as file:
        call = calls.begin(file._begin_read_into, 5, Tensor(array))
        if give_up:
            call.cancel()
        else:
            assert calls.end(call) == len(array) and array.tobytes() == content[5:1_000_005]
        del array
    del call

    def is_gone():
        # The exports of calls that were given up end in a later call.
        forebay.open(data).close()
        return alive() is None

    eventually(is_gone)


def test_what_is_no_destination_is_refused(data):
    numpy = pytest.importorskip("numpy")
    with forebay.open(data) as file:
        with pytest.raises(BufferError, match="writable"):
            file.read_into(0, b"constant")
        with pytest.raises(BufferError, match="contiguous"):
            file.read_into(0, numpy.zeros((10, 10), "u1")[:, ::2])
        with pytest.raises(BufferError, match="contiguous"):
            file.read_into(0, numpy.zeros((10, 10), "u1", order="F"))
        with pytest.raises(TypeError, match="int has no buffer"):
            file.read_into(0, 5)
        with pytest.raises(ValueError, match="offset is -1"):
            file.read(-1, 5)
        with pytest.raises(ValueError, match="length is -5"):
            file.read(0, -5)


def test_errors_are_those_that_python_programs_expect(tmp_path, data):
    with pytest.raises(FileNotFoundError) as caught:
        forebay.open(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT
    assert os.fspath(caught.value.filename) == os.fspath(tmp_path / "none")
    assert "open" in caught.value.strerror
    with pytest.raises(FileExistsError):
        forebay.open(data, write=True, exclusive=True)
    with pytest.raises(NotADirectoryError):
        forebay.open(data / "below")
    with pytest.raises(IsADirectoryError):
        forebay.open(tmp_path, write=True)
    with pytest.raises(IsADirectoryError) as caught:
        forebay.open(tmp_path)
    assert os.fspath(caught.value.filename) == os.fspath(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="regular files"):
        forebay.open(tmp_path / "pipe")
    with pytest.raises(ValueError, match="mode is 'fast'|mode is \"fast\""):
        forebay.open(data, "fast")
    with pytest.raises(ValueError, match="write=True"):
        forebay.open(data, create=True)
    with forebay.open(data) as file:
        with pytest.raises(OSError) as caught:
            file.write(0, b"x")
        assert caught.value.errno == errno.EBADF
        with pytest.raises(OSError):
            file.truncate(0)
    assert issubclass(forebay.Error, Exception)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permissions_are_kept(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(PermissionError):
        forebay.open(path)


@slow_fixture
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 40_000), st.integers(0, 20_000), st.booleans()).map(
            lambda piece: (piece[0] // 4096 * 4096, piece[1] // 4096 * 4096) if piece[2] else piece[:2]
        ),
        max_size=6,
    ),
    appended=st.lists(st.integers(0, 9000), max_size=3),
)
def test_writes_of_any_place_and_length_are_those_of_a_plain_file(tmp_path_factory, mode, pieces, appended):
    path = tmp_path_factory.mktemp("write") / "file"
    expected = bytearray()
    with forebay.open(path, mode, write=True, create=True) as file:
        for number, (offset, length) in enumerate(pieces):
            piece = bytes([number + 1]) * length
            assert file.write(offset, piece, durable=number == 2) == length
            if length:
                expected.extend(bytes(max(0, offset + length - len(expected))))
                expected[offset : offset + length] = piece
        for number, length in enumerate(appended):
            assert file.append(bytes([200 + number]) * length) == len(expected)
            expected.extend(bytes([200 + number]) * length)
        file.sync()
        file.sync(data_only=True)
        assert file.size == len(expected)
        assert file.read(0) == expected
        file.truncate(10_000)
        expected = expected[:10_000] + bytes(max(0, 10_000 - len(expected)))
        assert file.read(0) == expected
    assert path.read_bytes() == expected


def test_appends_of_many_threads_do_not_overlap(tmp_path, mode):
    path = tmp_path / "log"
    with forebay.open(path, mode, write=True, create=True) as file:
        offsets = []

        def append(letter):
            for _ in range(20):
                offsets.append((file.append(letter * 1001), letter))

        threads = [threading.Thread(target=append, args=(bytes([65 + number]),)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    text = path.read_bytes()
    assert len(text) == 80 * 1001
    for offset, letter in offsets:
        assert text[offset : offset + 1001] == letter * 1001


def test_a_file_is_made_emptied_and_kept(tmp_path):
    path = tmp_path / "new"
    with forebay.open(path, write=True, create=True, permissions=0o640) as file:
        file.write(0, b"old content")
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
    with forebay.open(path, write=True, create=True) as file:
        assert file.read(0) == b"old content"
    with forebay.open(path, write=True, truncate=True) as file:
        assert file.size == 0


def test_a_new_file_that_its_owner_may_not_write_or_read_is_written(program, tmp_path):
    """Regression: bytes that are not whole blocks are written by a second descriptor, whose open raised PermissionError for all but
    root, at first for files that their owner may not write, and then still for those that the owner may write and not read."""
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    program(
        """
        import ctypes, os, stat, sys
        import forebay

        # Permissions do not count for root with CAP_DAC_OVERRIDE.
        libc = ctypes.CDLL(None)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, sets) == 0
        sets[0] &= ~(1 << 1)
        assert libc.capset(header, sets) == 0
        os.umask(0o022)
        os.chdir(sys.argv[1])
        for mode in ("adaptive", "direct", "buffered", "uncached"):
            for exclusive, permissions in ((False, 0o464), (True, 0o464), (False, 0o262), (True, 0o062)):
                name = f"{mode}, {exclusive}, {permissions}"
                with forebay.open(name, mode, write=True, create=True, exclusive=exclusive, permissions=permissions) as file:
                    file.write(0, bytes(8192))
                    file.write(3, b"bytes")
                    assert file.append(b"more") == 8192
                    assert file.read(8190) == bytes(2) + b"more" and file.read(3, 5) == b"bytes"
                assert stat.S_IMODE(os.stat(name).st_mode) == permissions & ~0o022
                for again in ({"create": True}, {"exclusive": True}):
                    try:
                        forebay.open(name, mode, write=True, permissions=permissions, **again)
                        raise SystemExit("it was opened")
                    except PermissionError:
                        assert "create" in again
                    except FileExistsError:
                        assert "exclusive" in again
            with forebay.open("old", mode, write=True, create=True, permissions=0o444) as file:
                file.write(3, b"bytes")
            assert stat.S_IMODE(os.stat("old").st_mode) == 0o640
        """,
        tmp_path,
    )


def test_pickled_files_open_again(data, content):
    with forebay.open(data, "buffered") as file:
        with pickle.loads(pickle.dumps(file)) as again:
            assert (again.mode, again.writable) == ("buffered", False)
            assert again.read(5, 5) == content[5:10]


def test_reads_of_many_threads(data, content):
    failures = []
    with forebay.open(data) as file:

        def read(seed):
            for number in range(200):
                offset = (seed * 7919 + number * 104729) % (SIZE - 5000)
                if file.read(offset, 4999) != content[offset : offset + 4999]:
                    failures.append(offset)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failures


def test_a_closed_file_lets_calls_end(data, content):
    file = forebay.open(data)
    results = []

    def read():
        try:
            while True:
                results.append(file.read(100, 100_000) == content[100:100_100])
        except ValueError:
            results.append(True)

    threads = [threading.Thread(target=read) for _ in range(3)]
    [thread.start() for thread in threads]
    file.close()
    [thread.join(20) for thread in threads]
    assert not any(thread.is_alive() for thread in threads) and all(results)


def test_nothing_is_written_once_a_file_is_closed(tmp_path):
    """A first write that is not of whole blocks opens the file once more. If it was closed meanwhile, that one stayed open, and bytes
    were written by it afterwards."""
    for number in range(200):
        path = tmp_path / str(number)
        file = forebay.open(path, write=True, create=True)

        def write(file=file):
            with contextlib.suppress(ValueError, OSError, forebay.Error):
                file.write(0, b"late")

        threads = [threading.Thread(target=write) for _ in range(3)]
        [thread.start() for thread in threads]
        file.close()
        found = path.read_bytes()
        [thread.join() for thread in threads]
        assert path.read_bytes() == found


def test_figures(data):
    with forebay.open(data, "direct") as file:
        before = sum(part["reads"] for part in forebay.stats()["devices"])
        file.read(0, 4096)
        stats = forebay.stats()
    assert sum(part["reads"] for part in stats["devices"]) > before
    assert stats["memory"]["arena_bytes_max"] > 0
    doctor = forebay.doctor()
    assert stats["driver"] == os.environ.get("FOREBAY_TEST_DRIVER", stats["driver"])
    assert doctor["driver"] == stats["driver"] and doctor["shards"] >= 1
    for part in doctor["degraded"]:
        assert part["what"] and part["why"] and part["remedy"]
    assert isinstance(doctor["text"], str)


def test_background_files_have_a_class_of_their_own(data, content):
    with forebay.open(data, "direct", background=True) as file:
        again = pickle.loads(pickle.dumps(file))
        for each in (file, again):
            assert each.read(4096, 4096) == content[4096:8192]
            assert bytes(each.read_many([(0, 512)])[0]) == content[:512]
            assert b"".join(each.scan()) == content
        again.close()
        assert bytes(forebay.read_many([(file, 0, 512)])[0]) == content[:512]
    classes = {part["class"]: part["reads"] for part in forebay.stats()["devices"] if part["reads"]}
    assert classes.get("background", 0) >= 6, classes


def test_settings_come_before_the_engine(program, data):
    with pytest.raises(ValueError, match="shards is 0"):
        forebay.configure(shards=0)
    with pytest.raises(ValueError, match="driver"):
        forebay.configure(driver="magic")
    program(
        """
        import sys, threading, forebay
        forebay.configure(arena_bytes=32 << 20, shards=2, driver="threads")
        with forebay.open(sys.argv[1]) as file:
            file.read(0, 10)
        stats = forebay.stats()
        assert len(stats["shards"]) == 2 and stats["driver"] == "threads", stats
        assert stats["memory"]["arena_bytes_max"] <= 64 << 20, stats
        try:
            forebay.configure(shards=1)
        except RuntimeError as error:
            assert "runs already" in str(error)
        else:
            raise SystemExit("it was configured twice")
        """,
        data,
    )


def test_an_import_starts_nothing(program):
    program(
        """
        import os
        before = len(os.listdir("/proc/self/task"))
        import forebay
        assert len(os.listdir("/proc/self/task")) == before
        assert not any("io_uring" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                       if os.path.islink(f"/proc/self/fd/{fd}"))
        import sys
        assert "numpy" not in sys.modules and "asyncio" in sys.modules
        """
    )


def test_a_file_without_a_size_is_read_to_its_end(tmp_path):
    """Files of /proc have no size: read(0) returned no bytes of them, and no error."""
    with open("/proc/version", "rb") as file:
        expected = file.read()
    assert os.stat("/proc/version").st_size == 0 and expected
    for mode in ("adaptive", "buffered"):
        with forebay.open("/proc/version", mode) as file:
            assert file.read(0) == expected
            assert file.read(3) == expected[3:]
            assert file.read(0, 10) == expected[:10]
            assert file.read(0, 1 << 30) == expected
            assert file.read(len(expected) + 1) == b""
            assert b"".join(bytes(view) for view in file.scan()) == expected
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with forebay.open(empty) as file:
        assert file.read(0) == b""
