"""read_many."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from conftest import SIZE, known

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
ranges = st.lists(
    st.integers(0, SIZE).flatmap(lambda offset: st.tuples(st.just(offset), st.integers(0, min(70_000, SIZE - offset)))),
    max_size=40,
)


@many
@given(ranges=ranges, as_array=st.booleans(), is_cold=st.booleans())
def test_batches_are_the_bytes_of_their_ranges(data, content, mode, evict, ranges, as_array, is_cold):
    numpy = pytest.importorskip("numpy")
    if is_cold:
        evict(data)
    given_ranges = numpy.array(ranges, "i8").reshape(-1, 2) if as_array else ranges
    expected = [content[offset : offset + length] for offset, length in ranges]
    with forebay.open(data, mode) as file:
        views = file.read_many(given_ranges)
        assert [bytes(view) for view in views] == expected
        assert len({id(view.obj) for view in views}) <= 1, "they share one piece of memory"
        out = bytearray(b"\xee" * (sum(map(len, expected)) + 3))
        assert file.read_many(given_ranges, out) is out
        assert out == b"".join(expected) + b"\xee" * 3
        several = forebay.read_many([(file, offset, length) for offset, length in ranges])
        assert [bytes(view) for view in several] == expected


def test_ranges_come_in_many_forms(data, content):
    numpy = pytest.importorskip("numpy")
    pairs = [(5, 10), (100_000, 3), (0, 1)]
    expected = b"".join(content[offset : offset + length] for offset, length in pairs)
    with forebay.open(data) as file:
        for form in (
            pairs,
            tuple(pairs),
            iter(pairs),
            [list(pair) for pair in pairs],
            numpy.array(pairs, "i8"),
            numpy.array(pairs, "u8"),
            numpy.array(pairs, "i8")[::-1][::-1],
            *arrays_of(numpy, pairs),
            [(numpy.int64(offset), numpy.uint32(length)) for offset, length in pairs],
        ):
            assert b"".join(map(bytes, file.read_many(form))) == expected
        assert file.read_many([]) == []
        assert file.read_many(numpy.zeros((0, 2), "i8")) == []
        for wrong, error, text in (
            ([(1, -2)], ValueError, "negative"),
            ([(-1, 2)], ValueError, "negative"),
            (numpy.array([(3, -1)]), ValueError, "negative"),
            ([(2**63 - 1, 2)], ValueError, "2\\^63"),
            ([(2**64, 2)], ValueError, "no file has"),
            ([(1,)], TypeError, "pair"),
            ([(1, 2, 3)], TypeError, "pair"),
            ([("a", 2)], TypeError, "not a whole number"),
            ([5], TypeError, "pair"),
            (5, TypeError, "int has no ranges"),
            (numpy.zeros((4, 3), "i8"), ValueError, "shape"),
            (numpy.zeros((4, 2), "i4"), TypeError, "int64"),
            (numpy.zeros((4, 2), "f8"), TypeError, "int64"),
            (numpy.zeros((4, 2), ">i4"), TypeError, "int64"),
            (numpy.array([(3, -1)], ">i8"), ValueError, "negative"),
            (numpy.array([(3, 2**63)], ">u8"), ValueError, "2\\^63"),
        ):
            with pytest.raises(error, match=text):
                file.read_many(wrong)
        with pytest.raises(ValueError, match="out has 3 bytes; the ranges have 14"):
            file.read_many(pairs, bytearray(3))
        with pytest.raises((ValueError, OverflowError, MemoryError)):
            file.read_many([(0, 2**62)] * 4)


def arrays_of(numpy, pairs):
    """The pairs as arrays of each order of bytes and each layout.

    Regression: the numbers of a big-endian array were read as this machine's, so that offset 1 became 2^56."""
    for order in "<>=":
        for letter in "iu":
            plain = numpy.array(pairs, f"{order}{letter}8")
            wide = numpy.zeros((2 * len(pairs), 5), plain.dtype)
            wide[::2, 3:0:-2] = plain
            packed = numpy.zeros(len(pairs), numpy.dtype([("tag", "u1"), ("pair", plain.dtype, 2)]))
            packed["pair"] = plain
            yield from (plain, numpy.asfortranarray(plain), wide[::2, 3:0:-2], plain[::-1].copy()[::-1], packed["pair"])


def test_a_range_past_the_end_names_itself_and_the_others_are_read(data, content, mode):
    with forebay.open(data, mode) as file:
        out = bytearray(30)
        with pytest.raises(EOFError, match=str(SIZE - 5)):
            file.read_many([(0, 10), (SIZE - 5, 10), (50, 10)], out)
        assert out[:10] == content[:10] and out[20:] == content[50:60]
        # Regression: it advised "use File::read_up_to", a call of Rust's.
        with pytest.raises(EOFError, match="read returns less") as caught:
            file.read_many([(0, 10), (SIZE, 1)])
        assert "::" not in str(caught.value)


def test_several_files_are_one_batch(tmp_path, mode):
    paths = [tmp_path / str(number) for number in range(30)]
    for number, path in enumerate(paths):
        path.write_bytes(known(number * 1000, number * 1000 + 10_000))
    files = [forebay.open(path, mode) for path in paths]
    requests = [(files[(number * 7) % 30], number * 11, number) for number in range(300)]
    expected = [known(((number * 7) % 30) * 1000 + number * 11, ((number * 7) % 30) * 1000 + number * 12) for number in range(300)]
    assert [bytes(view) for view in forebay.read_many(requests)] == expected
    out = bytearray(sum(range(300)))
    assert forebay.read_many(requests, out, depth=2, max_gap=0) is out
    assert out == b"".join(expected)
    assert forebay.read_many([]) == []
    files[3].close()
    with pytest.raises(ValueError, match="is closed"):
        forebay.read_many(requests)
    for wrong in ([(1, 2, 3)], [(files[0], 1)], [files[0]]):
        with pytest.raises(TypeError, match="request 0"):
            forebay.read_many(wrong)


def test_a_warm_file_is_read_from_the_page_cache(tmp_path, content):
    """A batch into the program's memory was read from the device although the page cache had everything: `out=` of a warm file
    lasted as long as that of a cold file."""
    path = tmp_path / "warm"
    # The kernel may reclaim pages, or find a page busy.
    for _ in range(20):
        path.write_bytes(content)
        with forebay.open(path) as file:
            before = forebay.stats()["page_cache"]["reads"]
            out = bytearray(64 * 1000)
            file.read_many([(number * 9000, 1000) for number in range(64)], out)
            file.read_many([(number * 9000, 1000) for number in range(64)])
            served = forebay.stats()["page_cache"]["reads"] - before
        if served == 128:
            break
    if any("adaptive" in part["what"] for part in forebay.doctor()["degraded"]):
        pytest.skip("this file system has no page cache that can be asked")
    assert served == 128
    assert out == b"".join(content[number * 9000 : number * 9000 + 1000] for number in range(64))


def test_batches_of_many_threads(data, content):
    failures = []
    with forebay.open(data) as file:

        def read(seed):
            out = bytearray(100 * 500)
            for turn in range(20):
                places = [((seed + turn) * 104729 + number * 7919) % (SIZE - 500) for number in range(100)]
                file.read_many([(place, 500) for place in places], out)
                if out != b"".join(content[place : place + 500] for place in places):
                    failures.append(places)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failures
