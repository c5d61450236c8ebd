"""Forked children, and processes that other start methods make."""

import multiprocessing
import os
import threading
import time
import traceback

import pytest

import forebay
from conftest import known


def in_child(work):
    """Runs `work` in a forked child; returns its text, and fails if it raised or hung."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, str(work()).encode())
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    end = time.monotonic() + 30
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.005)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    assert status == 0, text
    return text


def test_a_child_uses_its_parents_files(data, content, mode):
    with forebay.open(data, mode) as file:
        assert file.read(0, 10) == content[:10]

        def work():
            assert file.read(5, 1000) == content[5:1005]
            assert [bytes(view) for view in file.read_many([(7, 9), (100_000, 50_000)])] == [
                content[7:16],
                content[100_000:150_000],
            ]
            assert b"".join(file.scan()) == content
            # And a child of the child.
            assert in_child(lambda: file.read(3, 3) == content[3:6]) == "True"
            assert file.read(6, 6) == content[6:12]
            file.close()
            return "all"

        assert in_child(work) == "all"
        assert file.read(0, 10) == content[:10], "the parent's file is open still"


def test_an_engine_that_was_not_used_before_the_fork(program, data):
    program(
        """
        import os, sys, forebay
        child = os.fork()
        with forebay.open(sys.argv[1]) as file:
            assert len(file.read(0, 100)) == 100
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        data,
    )


def test_the_file_stays_the_same_when_its_path_does_not(tmp_path):
    for change in ("replaced", "removed", "renamed"):
        path = tmp_path / change
        path.write_bytes(b"the first file")
        with forebay.open(path) as file:
            if change == "replaced":
                (tmp_path / "other").write_bytes(b"another file..")
                os.replace(tmp_path / "other", path)
            elif change == "removed":
                path.unlink()
            else:
                path.rename(tmp_path / "elsewhere")
            assert in_child(lambda: file.read(0)) == "b'the first file'"


def test_without_the_descriptor_only_the_same_file_is_opened(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"the first file")
    with forebay.open(path) as file:

        def closed_before():
            os.close(descriptor)
            return file.read(0)

        def taken_by_another():
            with open(__file__, "rb") as another:
                os.dup2(another.fileno(), descriptor)
                return file.read(0)

        descriptor = file.fileno()
        assert in_child(closed_before) == "b'the first file'"
        assert in_child(taken_by_another) == "b'the first file'"
        (tmp_path / "other").write_bytes(b"another file..")
        os.replace(tmp_path / "other", path)

        def replaced():
            os.close(descriptor)
            try:
                file.read(0)
            except OSError as error:
                return error.strerror

        assert "another file" in in_child(replaced)


def test_a_child_writes(tmp_path, mode):
    path = tmp_path / "file"
    with forebay.open(path, mode, write=True, create=True) as file:
        file.append(b"parent")
        assert in_child(lambda: (file.append(b"child"), file.sync())[0]) == "6"
        assert file.append(b"again") == 11
        assert file.read(0) == b"parentchildagain"


def test_views_of_before_the_fork(data, content):
    with forebay.open(data, "direct") as file:
        copies = file.read_many([(10, 100)])
        block = next(file.scan()).obj
        scan = file.scan()
        next(scan)

        def work():
            assert bytes(copies[0]) == content[10:110], "ordinary memory is inherited"
            for use in (lambda: memoryview(block), lambda: next(scan)):
                try:
                    use()
                except (BufferError, RuntimeError) as error:
                    assert "before the process was forked" in str(error)
                else:
                    raise AssertionError("I/O memory is not inherited")
            return "fine"

        assert in_child(work) == "fine"


def test_forks_while_other_threads_read(data, content):
    stop = threading.Event()
    failures = []
    with forebay.open(data) as file:

        def read(seed):
            out = bytearray(50 * 3000)
            while not stop.is_set():
                file.read_many([(number * 20_000 + seed, 3000) for number in range(50)], out)
                if bytes(out[:3000]) != content[seed : seed + 3000]:
                    failures.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        [thread.start() for thread in threads]
        try:
            for _ in range(15):
                assert in_child(lambda: file.read(9, 9) == content[9:18]) == "True"
        finally:
            stop.set()
            [thread.join() for thread in threads]
    assert not failures


def sample(arguments):
    file, offset = arguments
    return file.read(offset, 100)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(data, content, method):
    with forebay.open(data) as file:
        file.read(0, 1)
        with multiprocessing.get_context(method).Pool(2) as pool:
            found = pool.map(sample, [(file, offset) for offset in range(0, 100_000, 5000)])
    assert found == [content[offset : offset + 100] for offset in range(0, 100_000, 5000)]


def test_a_childs_settings_may_differ(program, data):
    program(
        """
        import os, sys, forebay
        forebay.configure(shards=1)
        file = forebay.open(sys.argv[1])
        child = os.fork()
        if child == 0:
            forebay.configure(shards=2)
            file.read(0, 1)
            os._exit(0 if forebay.doctor()["shards"] == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """,
        data,
    )


def test_known_bytes_are_known():
    assert known(3, 21) == known(0, 100)[3:21]
