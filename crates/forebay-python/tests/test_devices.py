"""Loads to a CUDA device, with a stand-in for it: its memory is that of this machine."""

import contextlib
import os
import sys
import types
from collections import deque

import pytest

from forebay.safetensors import _device, load_file, safe_open, save_file
from forebay.safetensors._dtypes import NUMPY
from test_safetensors import BYTES_FIRST, UNALIGNED, numpy, same, unaligned

CHUNK_BYTES = 1 << 16


class Stream:
    """The copies to the device. Each runs when an event behind it is waited for, which is as late as it may run."""

    def __init__(self):
        self.copies = deque()
        self.begun = self.ended = self.pinned_bytes = 0

    def copy(self, target, source, non_blocking):
        assert non_blocking
        self.begun += 1
        self.copies.append((target, source))

    def run(self, until):
        while self.ended < until:
            target, source = self.copies.popleft()
            target[...] = source
            self.ended += 1


@pytest.fixture(params=["stand-in", pytest.param("pt", marks=pytest.mark.torch)])
def stream(request, monkeypatch):
    stream = Stream()

    class Event:
        mark = 0

        def record(self):
            self.mark = stream.begun

        def synchronize(self):
            stream.run(self.mark)

    class Tensor(numpy.ndarray):
        pass

    if request.param == "pt":
        torch = pytest.importorskip("torch")
    else:
        torch = types.ModuleType("torch")
        vars(torch).update({name: numpy.dtype(name).type for name in NUMPY.values()})
        torch.Tensor = Tensor
        torch.cuda = types.SimpleNamespace()
        torch.device = lambda name: types.SimpleNamespace(type=name.split(":")[0])
        torch.full = lambda shape, value, dtype: numpy.full(shape, value, dtype).view(Tensor)
        monkeypatch.setitem(sys.modules, "torch", torch)

    def empty(count, dtype, device=None, pin_memory=False):
        # The program may have set another default.
        assert device == "cpu" if pin_memory else device.type == "cuda"
        stream.pinned_bytes += count if pin_memory else 0
        return torch.full((count,), 0xAA, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty, raising=False)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *parts, non_blocking=False: stream.copy(*parts, non_blocking), raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event, raising=False)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext, raising=False)
    monkeypatch.setattr(_device, "_CHUNK_BYTES", CHUNK_BYTES)
    return stream


def arrays(tensors):
    return {name: numpy.asarray(tensor) for name, tensor in tensors.items()}


def test_a_chunk_is_read_into_when_the_copies_from_it_have_ended(stream, tmp_path):
    """A device copies from pinned memory after the call that begins the copy: memory that is read into again, or unmapped, too early
    gives it the wrong bytes."""
    tensors = {f"layer.{number}": numpy.arange(number * 1000, dtype="f4") for number in range(60)}
    tensors |= {
        "long": numpy.arange(300_000, dtype="i8").reshape(300, 1000),
        "flags": numpy.arange(70_001) % 3 == 0,
        "scalar": numpy.array(5, "f8"),
        "empty": numpy.empty((0, 5), "f2"),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    loaded = load_file(path, "cuda:0", framework="pt")
    assert stream.begun > 60 and not stream.copies, "all copies have ended"
    assert stream.pinned_bytes == _device._CHUNKS * CHUNK_BYTES
    same(tensors, arrays(loaded))


@pytest.mark.parametrize("pad", range(8))
def test_tensors_at_any_byte(stream, tmp_path, pad):
    path = tmp_path / "model.safetensors"
    unaligned(path, pad, BYTES_FIRST)
    same(UNALIGNED, arrays(load_file(path, "cuda", framework="pt")))
    assert stream.pinned_bytes == CHUNK_BYTES


def test_a_file_that_becomes_shorter(stream, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": numpy.zeros(2_000_000, "u1")}, path)
    with safe_open(path, "pt", "cuda") as file:
        os.truncate(path, 1_000_000)
        with pytest.raises(ValueError, match="became shorter"):
            file.get_tensors()
