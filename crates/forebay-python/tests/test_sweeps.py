"""Each number that a user can turn, along its line: up to its limit no wrong byte and no error, above it a sentence with the way out.
The lengths are on both sides of those at which the package reads in another way (forebay-test/SWEEPS.md)."""

import json
import random
import struct

import pytest

import forebay
from forebay.safetensors import SafetensorError, load_file, safe_open, stream_files

numpy = pytest.importorskip("numpy")

# The longest read that a waiting thread makes itself, the shortest that looks at the file's length, the longest that is read in one
# piece of an adaptive file, and the shortest memory of huge pages.
CORNERS = [1, 4096, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20]
LENGTHS = sorted({0, *(length for corner in CORNERS for length in (corner - 1, corner, corner + 1, corner + corner // 10))})
GIB = 1 << 30


@pytest.fixture(scope="module")
def bytes_of_all(tmp_path_factory):
    """A file of any bytes that is longer than all lengths, and its bytes."""
    path = tmp_path_factory.mktemp("sweeps") / "data.bin"
    content = random.Random(1).randbytes(max(LENGTHS) + 5000)
    path.write_bytes(content)
    return path, content


@pytest.mark.parametrize("offset", [0, 777])
def test_reads_of_every_length(bytes_of_all, mode, offset):
    path, content = bytes_of_all
    with forebay.open(path, mode) as file:
        memory = forebay.allocate(max(LENGTHS), zeroed=False)
        for length in LENGTHS:
            expected = content[offset : offset + length]
            assert file.read(offset, length) == expected, length
            room = memoryview(memory)[:length]
            assert file.read_into(offset, room) == length and room == expected, length
            with file.io() as stream:
                assert stream.seek(offset) == offset and stream.read(length) == expected, length
                assert stream.seek(offset) == offset and stream.readinto(room) == length and room == expected, length
            (view,) = file.read_many([(offset, length)])
            assert view == expected, length


def test_writes_of_every_length(tmp_path, mode):
    content = random.Random(2).randbytes(max(LENGTHS))
    path = tmp_path / "written"
    with forebay.open(path, mode, write=True, create=True) as file:
        for length in LENGTHS:
            assert file.write(0, memoryview(content)[:length]) == length
            assert file.read(0, length) == content[:length], length


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 127, 128, 129, 1023, 1024, 1025, 100_000, 1_000_000])
def test_every_number_of_ranges(bytes_of_all, count):
    path, content = bytes_of_all
    room = len(content) // 8
    ranges = numpy.zeros((count, 2), "i8")
    ranges[:, 0] = (numpy.arange(count) * 7919) % room * 8
    ranges[:, 1] = 8
    words = numpy.frombuffer(content, "u8", room)
    expected = words[ranges[:, 0] // 8].tobytes()
    with forebay.open(path) as file:
        out = bytearray(8 * count)
        assert file.read_many(ranges, out) is out
        assert out == expected
        if count <= 1025:
            assert b"".join(map(bytes, file.read_many(ranges.tolist()))) == expected


# Past what 31 and 32 bits can count, and the last bytes.
@pytest.mark.parametrize("offset", [2 * GIB - 4, 2 * GIB, 4 * GIB - 4, 4 * GIB, 5 * GIB - 8])
def test_offsets_of_a_sparse_file(tmp_path, mode, offset):
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.seek(offset)
        file.write(b"8 bytes.")
        file.truncate(5 * GIB)
    with forebay.open(path, mode) as file:
        assert file.size == 5 * GIB
        assert file.read(offset, 8) == b"8 bytes."
        assert file.read(offset - 100, 108) == bytes(100) + b"8 bytes."
        assert [bytes(view) for view in file.read_many([(offset, 8), (3, 2)])] == [b"8 bytes.", bytes(2)]
        assert file.read(5 * GIB - 2, 5 * GIB) in (bytes(2), b"s.")
        assert file.read(5 * GIB, 5 * GIB) == b""


def header(tensors, pad=0):
    text = json.dumps(tensors).encode()
    text += b" " * max(0, pad - len(text))
    return struct.pack("<Q", len(text)) + text


def test_tensors_of_every_size(tmp_path):
    """Among them one of 5 GiB, sparse, of which slices are read; the tensors after it start beyond 32 bits."""
    sizes = [*LENGTHS, 5 * GIB, *LENGTHS[:9]]
    tensors, at = {}, 0
    for number, size in enumerate(sizes):
        tensors[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    head, path = header(tensors), tmp_path / "model.safetensors"
    rand = random.Random(3)
    contents = {f"t{number}": rand.randbytes(size) for number, size in enumerate(sizes) if size < GIB}
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + at)
        for name, content in contents.items():
            file.seek(len(head) + tensors[name]["data_offsets"][0])
            file.write(content)
    with safe_open(path, "np") as file:
        for name, content in contents.items():
            assert file.get_tensor(name).tobytes() == content, len(content)
        several = file.get_tensors(list(contents))
        assert all(several[name].tobytes() == content for name, content in contents.items())
        largest = file.get_slice(f"t{len(LENGTHS)}")
        assert largest.get_shape() == [5 * GIB]
        for start in (0, 4 * GIB - 3, 5 * GIB - 10):
            assert largest[start : start + 10].tobytes() == bytes(10)


def available_bytes():
    with open("/proc/meminfo") as text:
        return next(int(line.split()[1]) << 10 for line in text if line.startswith("MemAvailable:"))


def test_a_whole_tensor_beyond_what_32_bits_count(tmp_path):
    """Its file is sparse but for a few words."""
    if available_bytes() < 8 * GIB:
        pytest.skip("less than 8 GiB of memory are available, for a tensor of 4 GiB")
    count = 4 * GIB // 8 + 1543
    marked = [0, 2 * GIB // 8 - 1, 2 * GIB // 8, 4 * GIB // 8 - 1, 4 * GIB // 8, count - 1]
    head = header({"large": {"dtype": "U64", "shape": [count], "data_offsets": [0, 8 * count]}}, 248)
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + 8 * count)
        for word in marked:
            file.seek(len(head) + 8 * word)
            file.write(struct.pack("<Q", word + 1))
    # One after the other: each has the memory of the whole.
    for load in (load_file, lambda path, framework: dict(stream_files([path], framework=framework))):
        tensor = load(path, framework="np")["large"]
        assert tensor.shape == (count,) and tensor[marked].tolist() == [word + 1 for word in marked]
        assert numpy.count_nonzero(tensor) == len(marked)
        del tensor


@pytest.mark.parametrize("length", [256, (256 << 10) - 9, (256 << 10) - 8, (256 << 10) - 7, 300_000, 1 << 20])
def test_headers_of_every_length(tmp_path, length):
    path = tmp_path / "model.safetensors"
    head = header({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]}}, length)
    path.write_bytes(head + b"bytes")
    with safe_open(path, "np") as file:
        assert file.get_tensor("a").tobytes() == b"bytes"


def test_a_header_beyond_the_limit_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    for length, words in ((100_000_000, "and the file has 8$"), (100_000_001, "100000001 bytes, and 100000000 are allowed")):
        path.write_bytes(struct.pack("<Q", length))
        with pytest.raises(SafetensorError, match=words):
            safe_open(path, "np")
