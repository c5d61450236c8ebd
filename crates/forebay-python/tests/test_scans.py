"""Scans."""

import gc
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from conftest import SIZE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    start=st.integers(0, SIZE + 100),
    stop=st.integers(0, SIZE + 100) | st.none(),
    block=st.integers(1, 300_000),
    depth=st.integers(1, 9) | st.none(),
)
def test_the_blocks_are_the_file(data, content, mode, start, stop, block, depth):
    with forebay.open(data, mode) as file:
        views = list(file.scan(start, stop, max(block, 4096), depth))
        assert b"".join(views) == content[start : SIZE if stop is None else max(stop, start)]


def test_views_keep_their_memory_and_cannot_be_written(data, content):
    with forebay.open(data, "direct") as file:
        scan = file.scan(block=64 << 10)
        views = [next(scan) for _ in range(5)]
        del scan
    gc.collect()
    with pytest.raises(TypeError):
        views[0][0] = 1
    assert b"".join(views) == content[: 5 * (64 << 10)]
    part = views[3][10:20]
    block = views[3].obj
    assert isinstance(block, forebay.Block) and len(block) == 64 << 10 and "65536" in repr(block)
    del views, block
    gc.collect()
    assert bytes(part) == content[3 * (64 << 10) + 10 : 3 * (64 << 10) + 20]


def test_a_scan_that_keeps_everything_does_not_run_out_of_memory(program, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"abcdefgh" * (6 << 20))
    program(
        """
        import sys, forebay
        forebay.configure(arena_bytes=16 << 20, overflow_bytes=1 << 20)
        with forebay.open(sys.argv[1], "direct") as file:
            views = list(file.scan())
            assert sum(map(len, views)) == 48 << 20
            assert all(view == b"abcdefgh" * (len(view) // 8) for view in views)
            assert forebay.stats()["memory"]["held_bytes"] < 17 << 20
        """,
        path,
    )


def test_a_scan_belongs_to_one_thread_at_a_time(data):
    with forebay.open(data, "direct") as file:
        scan = file.scan(block=4096, depth=1)
        refused, blocks = [], []

        def read():
            for _ in range(1000):
                try:
                    blocks.append(bytes(next(scan)))
                except StopIteration:
                    return
                except RuntimeError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=read) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert all("another thread or task" in text for text in refused)


def test_the_lengths_of_blocks(data, content, mode):
    """A program took each block for one of its records of 1,000 bytes, as the documentation had it."""
    with forebay.open(data, mode) as file:
        for start, block, first, each in ((0, 1000, 4096, 4096), (0, 5000, 8192, 8192), (5000, 5000, 7288, 8192)):
            lengths = [len(view) for view in file.scan(start, block=block)]
            assert lengths[0] == first and set(lengths[1:-1]) == {each} and 0 < lengths[-1] <= each
            assert sum(lengths) == SIZE - start
    text = " ".join(forebay.File.scan.__doc__.split())
    assert "rounded up to whole pages of 4,096 bytes" in text and "the first one where `start` is within a page" in text


def test_arguments_are_checked(data):
    with forebay.open(data) as file:
        for arguments in ({"start": -1}, {"stop": -1}, {"block": 0}, {"depth": 0}):
            with pytest.raises(ValueError):
                file.scan(**arguments)
        assert list(file.scan(SIZE)) == []
        assert list(file.scan(5, 3)) == []
    with pytest.raises(ValueError):
        file.scan()
