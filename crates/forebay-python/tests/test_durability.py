"""Calls that promise durable bytes. Regression for their kind: a log's and a store's close returned success after the layer below
was closed, and acknowledged data was lost. Every such call is made here with the file's limit reached or the file closed, before
and during the call: it raises, or all of its bytes are in the file."""

import pytest

# Each call gets an open file and bytes, and returns what it acknowledges.
CALLS = """
import asyncio, errno, os, resource, signal, sys, threading
import forebay

def write(file, data):
    return file.write(0, data, durable=True)

def append(file, data):
    at = file.append(data, durable=True)
    assert at == 0, at
    return len(data)

def write_and_sync(file, data):
    count = file.write(0, data)
    file.sync()
    return count

def write_and_sync_data(file, data):
    count = file.write(0, data)
    file.sync(data_only=True)
    return count

def write_of_a_task(file, data):
    async def run():
        return await file.awrite(0, data, durable=True)
    return asyncio.run(run())

def append_of_a_task(file, data):
    async def run():
        await file.aappend(data, durable=True)
        return len(data)
    return asyncio.run(run())

call, mode, length, path = globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3]), sys.argv[4]
data = bytes(range(256)) * (length // 256 + 1)
data = data[:length]

def check(count, error):
    found = open(path, "rb").read()
    if error is None:
        assert count == length, f"{count} of {length} acknowledged, and no error"
        assert found == data, f"acknowledged, and {len(found)} bytes are there"
    else:
        assert data.startswith(found.rstrip(b"\\0")) or found == b"", "what is there was written"
"""

NAMES = ["write", "append", "write_and_sync", "write_and_sync_data", "write_of_a_task", "append_of_a_task"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_acknowledged_beyond_the_limit_of_the_file(program, tmp_path, mode, name):
    program(
        CALLS
        + """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for length in (1, 4095, 4096, 4097, 1_000_000):
    data = (bytes(range(256)) * (length // 256 + 1))[:length]
    for limit in (0, 4096, length - 1, length, 2_000_000):
        path = f"{sys.argv[4]}-{length}-{limit}"
        with forebay.open(path, mode, write=True, create=True) as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            count, error = None, None
            try:
                count = call(file, data)
            except OSError as failure:
                error = failure
                assert failure.errno == errno.EFBIG, failure
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert error is None or limit < (length + 4095) // 4096 * 4096, f"{length} bytes fit into {limit}: {error}"
        check(count, error)
        os.remove(path)
""",
        name,
        mode,
        0,
        tmp_path / "file",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_closed_acknowledges_nothing_that_is_not_there(program, tmp_path, mode, name):
    program(
        CALLS
        + """
for round in range(20):
    for when in ("before", "during"):
        path = f"{sys.argv[4]}-{round}-{when}"
        file = forebay.open(path, mode, write=True, create=True)
        closer = threading.Thread(target=file.close)
        closer.start()
        if when == "before":
            closer.join()
        count, error = None, None
        try:
            count = call(file, data)
        except (ValueError, OSError, forebay.Error) as failure:
            error = failure
            assert "closed" in str(failure).lower(), failure
        closer.join()
        assert when == "during" or error is not None, "the file was closed before"
        check(count, error)
        os.remove(path)
""",
        name,
        mode,
        1_000_000,
        tmp_path / "file",
    )
