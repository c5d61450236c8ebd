"""Shared by several tests: files of known bytes, programs in separate processes, waits for expected events."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

import forebay
from forebay._forebay import Files

# As the tests of the core: the same tests with every engine on the pool of threads, as where io_uring is refused.
if os.environ.get("FOREBAY_TEST_DRIVER"):
    forebay.configure(driver=os.environ["FOREBAY_TEST_DRIVER"])


def pytest_addoption(parser):
    parser.addoption("--torch", action="store_true", help="also run the tests that need torch")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--torch"):
        skip = pytest.mark.skip(reason="needs --torch, and torch")
        for item in items:
            if "torch" in item.keywords and item.get_closest_marker("torch"):
                item.add_marker(skip)


def pytest_configure(config):
    config.addinivalue_line("markers", "torch: needs torch, which is gigabytes; run with --torch")


def known(start, stop):
    """Returns the bytes of a test file from start to stop: 8 bytes in a row are nowhere else the same."""
    first = start // 8
    words = b"".join(((number * 0x9E3779B97F4A7C15) & (2**64 - 1)).to_bytes(8, "little") for number in range(first, (stop + 7) // 8))
    return words[start - first * 8 : stop - first * 8]


SIZE = 1_234_567


@pytest.fixture(scope="session")
def content():
    return known(0, SIZE)


@pytest.fixture(scope="session")
def data(tmp_path_factory, content):
    """A file of known bytes that no test changes."""
    path = tmp_path_factory.mktemp("data") / "data.bin"
    path.write_bytes(content)
    return path


@pytest.fixture(params=["adaptive", "direct", "buffered", "uncached"])
def mode(request):
    return request.param


@pytest.fixture
def evict():
    """Drops a file from the page cache."""

    def evict(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    return evict


@pytest.fixture
def program():
    """Runs a program in a separate interpreter. Fails if the program does, or exceeds its time limit."""

    def run(source, *arguments, code=0, timeout=60, options=()):
        command = [sys.executable, *options, "-c", textwrap.dedent(source), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture
def batches(monkeypatch):
    """The numbers of ranges in the batches that a module reads over several files."""

    def of(module):
        calls = []

        class Counted:
            def __init__(self, *arguments):
                self.files = Files(*arguments)

            def add(self, *arguments):
                return self.files.add(*arguments)

            def read_many(self, requests, **more):
                calls.append(len(requests))
                return self.files.read_many(requests, **more)

            def _begin_read_many(self, hub, make_future, requests, **more):
                calls.append(len(requests))
                return self.files._begin_read_many(hub, make_future, requests, **more)

            def close(self):
                self.files.close()

        monkeypatch.setattr(module, "Files", Counted)
        return calls

    return of


@pytest.fixture
def eventually():
    """Waits for a condition, a good while at most."""

    def wait(condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come true"
            time.sleep(0.01)

    return wait
