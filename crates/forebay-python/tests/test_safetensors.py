"""safetensors files: the same tensors and the same refusals as the package safetensors."""

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.safetensors import load_file, safe_open

numpy = pytest.importorskip("numpy")
theirs = pytest.importorskip("safetensors")
import safetensors.numpy  # noqa: E402

import forebay.safetensors.numpy  # noqa: E402

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@st.composite
def tensors(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=8), max_size=6, unique=True))
    names = [name for name in names if name != "__metadata__"]
    result = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 7), max_size=4))
        dtype = draw(st.sampled_from(DTYPES))
        count = int(numpy.prod(shape))
        values = draw(st.integers(0, 250)) + numpy.arange(count)
        result[name] = values.astype(dtype).reshape(shape)
    return result


def same(left, right):
    assert sorted(left) == sorted(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and tensor.shape == right[name].shape
        assert tensor.tobytes() == right[name].tobytes()


@many
@given(tensors=tensors(), metadata=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_files_load_as_theirs_do(tmp_path, tensors, metadata):
    path = tmp_path / "model.safetensors"
    try:
        safetensors.numpy.save_file(tensors, path, metadata)
    except Exception as error:
        pytest.skip(f"theirs cannot save it: {error}")
    try:
        safetensors.numpy.load_file(path)
    except Exception:
        # Without tensors and with empty metadata theirs writes a header that it refuses itself.
        assert not tensors
        with pytest.raises(ValueError, match="no valid safetensors file"):
            load_file(path, framework="np")
        return
    same(tensors, load_file(path, framework="np"))
    same(tensors, forebay.safetensors.numpy.load_file(path))
    with theirs.safe_open(path, "np") as expected, safe_open(path, "np") as file:
        assert sorted(expected.keys()) == file.keys()
        assert expected.metadata() == file.metadata()
        # Tensors without bytes have one place, in any order.
        with_bytes = lambda names: [name for name in names if tensors[name].size]  # noqa: E731
        assert with_bytes(expected.offset_keys()) == with_bytes(file.offset_keys())
        assert sorted(expected.offset_keys()) == sorted(file.offset_keys())
        same(tensors, {name: file.get_tensor(name) for name in file.keys()})
        same(tensors, file.get_tensors(file.keys()))
        for name in file.keys():
            part = file.get_slice(name)
            assert part.get_shape() == list(expected.get_slice(name).get_shape())
            assert part.get_dtype() == expected.get_slice(name).get_dtype()


@many
@given(data=st.data())
def test_slices_are_those_of_the_array(tmp_path, data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    tensor = numpy.arange(int(numpy.prod(shape)), dtype="i4").reshape(shape)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": numpy.zeros(3, "u1"), "tensor": tensor}, path)
    parts = []
    for size in shape[: data.draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-size - 2, size + 2)
        parts.append(
            data.draw(
                st.integers(-size, size - 1) | st.builds(slice, bound, bound, st.none() | st.integers(1, 3))
            )
        )
    index = tuple(parts)
    if data.draw(st.booleans()):
        index = (*index, Ellipsis)
    with safe_open(path, "np") as file:
        found = file.get_slice("tensor")[index]
        expected = tensor[index]
        assert found.shape == expected.shape and (found == expected).all()


def test_what_a_slice_cannot_be(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": numpy.zeros((3, 4))}, path)
    with safe_open(path, "np") as file:
        part = file.get_slice("a")
        for index in (3, -4, (0, 0, 0), (..., ...)):
            with pytest.raises(IndexError):
                part[index]
        for index in (1.5, "a", None, (0, 1.5)):
            with pytest.raises(TypeError):
                part[index]
        with pytest.raises(ValueError, match="positive"):
            part[::-1]
        with pytest.raises(KeyError, match="no tensor 'b'"):
            file.get_tensor("b")
    with pytest.raises(ValueError, match="framework"):
        safe_open(path, "tf")
    with pytest.raises(ValueError, match="device"):
        safe_open(path, "np", "cuda")
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none", framework="np")


def test_parts_of_a_tensor_of_more_than_four_gigabytes(tmp_path):
    count = (6 << 30) + 5
    text = json.dumps({"a": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin = file.tell()
        for place in ((5 << 30) - 1, count - 2):
            file.seek(begin + place)
            file.write(b"xy")
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        part = file.get_slice("a")
        assert part[(5 << 30) - 2 : (5 << 30) + 2].tobytes() == b"\0xy\0"
        assert part[-3:].tobytes() == b"\0xy" and part[:: 5 << 30].tobytes() == b"\0y"


def header(text, body=b"", length=None):
    encoded = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + body


def one(**changes):
    return {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}


HOSTILE = {
    "empty file": b"",
    "half a length": b"\x01\x02\x03",
    "only a length": struct.pack("<Q", 0),
    "a length beyond the file": header({}, length=1000),
    "a length of 2^63": header({}, length=2**63),
    "a length of 2^64-1": header({}, length=2**64 - 1),
    "a header above 100 MB": header({}, length=100_000_001),
    "not UTF-8": header(b'{"\xff": 1}'),
    "not JSON": header(b"{nothing"),
    "no object": header(b"[]"),
    "a null": header(b"null"),
    "an unknown dtype": header(one(dtype="U7"), b"abcd"),
    "a shape that does not fit": header(one(shape=[5]), b"abcd"),
    "a negative size": header(one(shape=[-4]), b"abcd"),
    "a size that overflows": header(one(shape=[2**62, 2**62]), b"abcd"),
    "offsets the wrong way": header(one(data_offsets=[4, 0]), b"abcd"),
    "an offset beyond the file": header(one(data_offsets=[0, 400], shape=[400]), b"abcd"),
    "bytes behind the last tensor": header(one(), b"abcdx"),
    "bytes before the first tensor": header(one(data_offsets=[1, 5]), b"xabcd"),
    "too few bytes": header(one(), b"abc"),
    "an overlap": header({**one(), "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}, b"abcdef"),
    "a hole": header({**one(), "b": {"dtype": "U8", "shape": [1], "data_offsets": [5, 6]}}, b"abcdef"),
    "no offsets": header({"a": {"dtype": "U8", "shape": [4]}}, b"abcd"),
    "metadata that is not text": header({"__metadata__": {"a": 5}}),
    "four bits that end in a byte": header(one(dtype="F4", shape=[3], data_offsets=[0, 1]), b"a"),
    "the same name twice": header(
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"
    ),
    "the same name twice, the first is whole": header(
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"abcd"
    ),
    "nothing": header({}),
    "spaces behind": header(b"{}      "),
    "only metadata": header({"__metadata__": {"a": "b"}}),
    "a scalar": header(one(shape=[], data_offsets=[0, 1]), b"a"),
    "an empty tensor": header(one(shape=[0, 5], data_offsets=[0, 0])),
    "deep": header(b"[" * 100_000 + b"]" * 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_is_accepted_where_theirs_accept_it(tmp_path, name):
    path = tmp_path / "file"
    path.write_bytes(HOSTILE[name])
    try:
        expected = safetensors.numpy.load_file(path)
    except Exception:
        with pytest.raises(ValueError, match="no valid safetensors file"):
            load_file(path, framework="np")
    else:
        same(expected, load_file(path, framework="np"))


@many
@given(data=st.data())
def test_damaged_headers_are_judged_alike(tmp_path, data):
    path = tmp_path / "file"
    good = bytearray(header({**one(), "b": {"dtype": "I16", "shape": [2, 2], "data_offsets": [4, 12]}}, b"abcdefghijkl"))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(good)
    try:
        expected = safetensors.numpy.load_file(path)
    except Exception:
        with pytest.raises(ValueError):
            load_file(path, framework="np")
    else:
        same(expected, load_file(path, framework="np"))


def test_a_large_file_is_one_batch(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {f"layer.{number}": numpy.arange(number * 1000, dtype="f4") for number in range(60)}
    safetensors.numpy.save_file(tensors, path)
    loaded = load_file(path, framework="np")
    same(tensors, loaded)
    # They lie in one piece of memory as in the file.
    begins = {name: tensor.__array_interface__["data"][0] for name, tensor in loaded.items() if tensor.size}
    with safe_open(path, "np") as file:
        distances = {begin - file._tensors[name].begin for name, begin in begins.items()}
    assert len(distances) == 1


@many
@given(data=st.data())
def test_tensors_come_into_memory_of_the_caller(tmp_path, data):
    path = tmp_path / "model.safetensors"
    sizes = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=5))
    tensors = {f"layer.{number}": numpy.arange(size, dtype="u2") for number, size in enumerate(sizes)}
    safetensors.numpy.save_file(tensors, path)
    with safe_open(path, "np") as file:
        names = data.draw(st.none() | st.permutations(sorted(tensors)).map(lambda all: all[: len(all) // 2 + 1]))
        need = file.nbytes(names)
        extra = data.draw(st.integers(0, 5))
        room = data.draw(st.sampled_from([bytearray, lambda size: numpy.zeros(size, "u1"), forebay.allocate]))(need + extra)
        loaded = file.get_tensors(names, out=room)
        same({name: tensors[name] for name in (tensors if names is None else names)}, loaded)
        for tensor in loaded.values():
            assert tensor.size == 0 or numpy.shares_memory(tensor, numpy.frombuffer(room, "u1"))
        if need:
            with pytest.raises(ValueError, match=f"out has {need - 1} bytes; .* need {need}"):
                file.get_tensors(names, out=bytearray(need - 1))
        for wrong in (bytes(need), "text"):
            with pytest.raises((TypeError, BufferError)):
                file.get_tensors(names, out=wrong)
    same(tensors, load_file(path, framework="np", out=bytearray(path.stat().st_size + 4096)))


UNALIGNED = {
    "b": numpy.arange(3, dtype="u1"),
    "w": numpy.arange(4, dtype="f4").reshape(2, 2),
    "d": numpy.arange(2, dtype="f8"),
    "h": numpy.arange(7, dtype="f2"),
}
BYTES_FIRST, LONGEST_FIRST = ["b", "w", "d", "h"], ["d", "w", "h", "b"]


def unaligned(path, pad, order):
    """Writes tensors without the padding of the package safetensors."""
    head, body = {}, b""
    for name in order:
        tensor = UNALIGNED[name]
        dtype = {"u1": "U8", "f4": "F32", "f8": "F64", "f2": "F16"}[tensor.dtype.str[1:]]
        head[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + tensor.nbytes]}
        body += tensor.tobytes()
    path.write_bytes(header(json.dumps(head).encode() + b" " * pad, body))


@pytest.mark.parametrize("order", [BYTES_FIRST, LONGEST_FIRST])
@pytest.mark.parametrize("pad", range(8))
def test_tensors_at_any_byte_are_aligned_in_memory(tmp_path, pad, order):
    """Regression: the header of a file may have any length, and tensors may follow one another at any byte. They lay unaligned in memory,
    so that other libraries refused them or read them slowly."""
    path = tmp_path / "model.safetensors"
    unaligned(path, pad, order)
    found = [load_file(path, framework="np"), load_file(path, framework="np", out=memoryview(bytearray(5000))[1:])]
    with safe_open(path, "np") as file:
        found.append({name: file.get_tensor(name) for name in order})
        found.append(file.get_tensors(order[1:]))
        found.append({"w": file.get_slice("w")[0:2]})
        assert len(memoryview(bytearray(file.nbytes()))) >= sum(tensor.nbytes for tensor in UNALIGNED.values())
        file.get_tensors(out=bytearray(file.nbytes()))
        with pytest.raises(ValueError, match="need"):
            file.get_tensors(out=bytearray(file.nbytes() - 1))
        row = file.get_slice("w")[1]
        assert row.flags.aligned and (row == UNALIGNED["w"][1]).all()
    for tensors in found:
        for name, tensor in tensors.items():
            assert tensor.flags.aligned and tensor.flags.writeable, name
            assert tensor.dtype == UNALIGNED[name].dtype and (tensor == UNALIGNED[name]).all()
    if order is LONGEST_FIRST:
        # They still share one piece of memory: it starts with the tensors.
        places = [found[0][name].__array_interface__["data"][0] for name in order]
        assert [place - places[0] for place in places] == [0, 16, 32, 46]


def test_types_that_numpy_lacks(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(header(one(dtype="BF16", shape=[2]), b"abcd"))
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            load_file(path, framework="np")
    else:
        assert load_file(path, framework="np")["a"].dtype == ml_dtypes.bfloat16


@pytest.mark.torch
def test_torch_loads_as_theirs_does(tmp_path):
    torch = pytest.importorskip("torch")
    import safetensors.torch

    import forebay.safetensors.torch

    path = tmp_path / "model.safetensors"
    tensors = {
        "bf16": torch.arange(30).to(torch.bfloat16).reshape(5, 6),
        "odd": torch.arange(3, dtype=torch.uint8),
        "f32": torch.arange(1000, dtype=torch.float32),
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(5.0),
    }
    safetensors.torch.save_file(tensors, path)
    for loaded in (load_file(path, framework="pt"), forebay.safetensors.torch.load_file(path)):
        for name, tensor in tensors.items():
            assert torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_slice("bf16")[1:3, ::2], tensors["bf16"][1:3, ::2])
    unaligned(path, 3, BYTES_FIRST)
    for out in (None, memoryview(bytearray(5000))[1:]):
        for name, tensor in load_file(path, framework="pt", out=out).items():
            assert tensor.data_ptr() % tensor.element_size() == 0 and (tensor.numpy() == UNALIGNED[name]).all()
