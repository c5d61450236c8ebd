"""Tensors of several safetensors files as one stream: the tensors of load_file, in bounded memory."""

import os
import struct

import pytest

from forebay._calls import Calls
from forebay.safetensors import SafetensorError, load_file, save_file, stream_files
from test_safetensors import numpy, same


@pytest.fixture
def model(tmp_path):
    """Files as those of a model: short tensors, long tensors, no tensors, and a header that puts them at any byte."""
    count = numpy.arange(6_000_000, dtype="u4")
    files = [
        {f"{number}": count[number : number * 5] for number in range(300)},
        {},
        {"long": count, "shorter": count[5:3_000_000], "empty": count[:0]},
        {"bytes": (count[:9000] % 256).astype("u1"), "halves": (count[:4_000_001] % 1000).astype("f2")},
        {"number": numpy.array(5)},
    ]
    paths = [tmp_path / f"model-{number}.safetensors" for number in range(len(files))]
    for path, tensors in zip(paths, files):
        save_file(tensors, path)
    content = paths[3].read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    paths[3].write_bytes(struct.pack("<Q", length + 3) + content[8 : 8 + length] + b"   " + content[8 + length :])
    return paths


@pytest.mark.parametrize("ahead_bytes", [0, 1 << 20, 30 << 20, 256 << 20])
def test_the_tensors_are_those_of_the_files(model, monkeypatch, ahead_bytes):
    begun = 0
    begin = Calls.begin

    def count(self, method, offset, view):
        nonlocal begun
        begun += len(view)
        return begin(self, method, offset, view)

    monkeypatch.setattr(Calls, "begin", count)
    expected = [pair for path in model for pair in load_file(path, framework="np").items()]
    yielded, longest, progress = 0, max(tensor.nbytes for _, tensor in expected), []
    stream = stream_files(model, framework="np", ahead_bytes=ahead_bytes, progress=lambda *pair: progress.append(pair))
    for (name, tensor), (found_name, found) in zip(expected, stream, strict=True):
        assert found_name == name
        same({name: tensor}, {name: found})
        assert found.flags.aligned
        assert begun - yielded <= max(ahead_bytes, longest, 8 << 20)
        yielded += found.nbytes
    assert begun == yielded
    total = sum(os.path.getsize(path) for path in model)
    assert len(progress) == len(expected) and progress == sorted(progress) and progress[-1] == (total, total)


def test_tensors_outlive_the_stream(model):
    stream = stream_files(model, framework="np", ahead_bytes=1 << 20)
    kept = dict(stream)
    expected = {name: tensor for path in model for name, tensor in load_file(path, framework="np").items()}
    same(expected, kept)
    kept["long"][:] = 0
    assert kept["shorter"][0] == 5, "long tensors have memory of their own"


def test_a_stream_that_is_closed_leaves_no_descriptor(model, eventually):
    next(stream_files(model, framework="np"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        stream = stream_files(model, framework="np")
        for _ in range(301):
            next(stream)
        stream.close()
        with pytest.raises(StopIteration):
            next(stream)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 5)


def test_files_that_are_wrong(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        stream_files([*model, tmp_path / "none"], framework="np")
    (tmp_path / "wrong").write_bytes(b"wrong")
    with pytest.raises(SafetensorError, match="wrong is no valid"):
        list(stream_files([*model, tmp_path / "wrong"], framework="np"))
    with pytest.raises(ValueError, match="framework"):
        list(stream_files(model, framework="tf"))
    with pytest.raises(ZeroDivisionError):
        list(stream_files(model, framework="np", progress=lambda *_: 1 // 0))
    assert list(stream_files([])) == []


def test_an_error_of_a_later_file_comes_after_the_tensors_before_it(model, tmp_path):
    """Files are opened ahead: one that was not valid ended the stream while tensors of the files before it were not yielded."""
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"wrong")
    expected = [name for path in model for name in load_file(path, framework="np")]
    stream = stream_files([*model, wrong, *model], framework="np")
    assert [next(stream)[0] for _ in expected] == expected
    with pytest.raises(SafetensorError, match="wrong is no valid"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(SafetensorError, match="wrong is no valid"):
        next(stream_files([wrong, *model], framework="np"))


@pytest.mark.torch
def test_tensors_of_torch(model):
    torch = pytest.importorskip("torch", minversion="2.3", reason="torch before 2.3 has no uint32")
    found = dict(stream_files(model, framework="pt"))
    expected = {name: tensor for path in model for name, tensor in load_file(path, framework="pt").items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
