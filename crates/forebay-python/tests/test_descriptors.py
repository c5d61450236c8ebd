"""Batches over more files than the process may have open. Before, all files of a batch were open together."""

import pytest

FILES = """
    import errno, os, resource, sys

    limit, root = int(sys.argv[1]), sys.argv[2]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    import forebay

    def content(number):
        return b"".join((number * 1000 + word).to_bytes(8, "little") for word in range(1000))

    paths = [os.path.join(root, str(number)) for number in range(400)]
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(content(number))
"""


@pytest.fixture(params=[64, 128, 256])
def limit(request):
    return request.param


def test_a_data_set_of_many_files(program, limit, tmp_path):
    program(
        FILES
        + """
    from forebay.torch import RangeDataset

    ranges = [(number % 400, 8 * (number % 500), 100) for number in range(800)]
    samples = RangeDataset(paths, ranges, transform=bytes)
    for _ in range(2):
        for indices in (range(800), range(799, -1, -3), [5, 5, 6]):
            for index, sample in zip(indices, samples.__getitems__(list(indices))):
                file, offset, length = ranges[index]
                assert sample == content(file)[offset : offset + length], index
    assert len(os.listdir("/proc/self/fd")) < limit
    child = os.fork()
    if child == 0:
        os._exit(0 if samples.__getitems__([7, 399])[1] == content(399)[8 * 399 :][:100] else 1)
    assert os.waitpid(child, 0)[1] == 0
    os.replace(paths[1], paths[3])
    try:
        # Perhaps it is still open, and then it is the file that it was.
        assert samples[3] == content(3)[24:124]
    except OSError as error:
        assert error.errno == errno.ESTALE, error
    samples.close()
    try:
        samples[0]
    except ValueError:
        pass
    else:
        raise AssertionError("they are closed")
    """,
        limit,
        tmp_path,
    )


def test_a_file_made_in_place_of_another_is_not_that_one(program, tmp_path):
    # A shard of a data set was removed, and another one was written to its path. Most file systems gave it the same inode, and samples of
    # the old one had the bytes of the new one where the file had been closed for others.
    program(
        FILES
        + """
    from forebay.torch import RangeDataset

    samples = RangeDataset(paths, [(number, 0, 100) for number in range(400)], transform=bytes)
    assert samples[0] == content(0)[:100]
    # The first file is closed for others.
    samples.__getitems__(range(1, 400))
    old = os.stat(paths[0])
    os.remove(paths[0])
    for number in range(100):
        path = f"{root}/other-{number}"
        with open(path, "wb") as file:
            file.write(content(number + 1))
        if os.stat(path).st_ino == old.st_ino:
            break
    os.rename(path, paths[0])
    try:
        samples[0]
    except OSError as error:
        assert error.errno == errno.ESTALE, error
    else:
        raise SystemExit("it is another file")
    assert samples[1] == content(1)[:100]
    """,
        64,
        tmp_path,
    )


def test_cat_ranges_of_many_files(program, limit, tmp_path):
    pytest.importorskip("fsspec")
    program(
        FILES
        + """
    from forebay.fsspec import ForebayFileSystem

    fs = ForebayFileSystem()
    names = [paths[number % 400] for number in range(1200)]
    starts = [number % 700 for number in range(1200)]
    for _ in range(2):
        found = fs.cat_ranges(names, starts, [start + 50 for start in starts])
        for number, data in enumerate(found):
            assert data == content(number % 400)[starts[number] :][:50], number
    own = []
    try:
        while True:
            own.append(open(os.devnull))
    except OSError as error:
        assert error.errno == errno.EMFILE
    refused = fs.cat_ranges(names[:3], 0, 10)
    assert all(isinstance(error, OSError) and error.errno == errno.EMFILE for error in refused), refused
    assert "ulimit -n" in str(refused[0])
    own.clear()
    assert fs.cat_ranges(names[:3], 0, 10) == [content(number)[:10] for number in range(3)]
    """,
        limit,
        tmp_path,
    )


def test_a_stream_of_many_files(program, limit, tmp_path):
    # A model of many short files, as of adapters: a stream opened all of them that `ahead_bytes` has room for, and ended with EMFILE.
    pytest.importorskip("numpy")
    program(
        FILES
        + """
    import json, struct

    from forebay.safetensors import stream_files

    text = json.dumps({"tensor": {"dtype": "U8", "shape": [8000], "data_offsets": [0, 8000]}}).encode()
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + content(number))
    count = 0
    for name, tensor in stream_files(paths, framework="np"):
        assert name == "tensor" and tensor.tobytes() == content(count), count
        count += 1
    assert count == 400
    """,
        limit,
        tmp_path,
    )


def test_many_batches_at_the_same_time(program, limit, tmp_path):
    # Each batch had a limit of its own: those of several tasks or threads opened more files together than the process may have open, and
    # failed with EMFILE.
    program(
        FILES
        + """
    import asyncio

    from forebay._aio import end, place
    from forebay._forebay import Files

    requests = [(number, 8 * number, 100) for number in range(400)]
    expected = [content(number)[offset : offset + length] for number, offset, length in requests]

    async def main():
        sets = [Files(paths, "adaptive") for _ in range(24)]
        for _ in range(2):
            calls = [files._begin_read_many(*place(), requests) for files in sets]
            for views in await asyncio.gather(*map(end, calls)):
                assert [bytes(view) for view in views] == expected
        # One of them is given up while it waits for its turn; one waits for all others without the loop.
        calls = [files._begin_read_many(*place(), requests) for files in sets]
        calls.pop().cancel()
        assert [bytes(view) for view in sets[-1].read_many(requests)] == expected
        for views in await asyncio.gather(*map(end, calls)):
            assert [bytes(view) for view in views] == expected
        for files in sets:
            files.close()

    asyncio.run(main())
    """,
        limit,
        tmp_path,
    )
