"""Memory of ours that other libraries import by DLPack."""

import ctypes
import gc
import threading

import pytest

import forebay
from conftest import known
from test_forks import in_child
from test_leaks import resident_bytes

VERSIONED = (1, 0)
READ_ONLY, IS_COPIED = 1, 2
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Plain(ctypes.Structure):
    _fields_ = [("array", Array), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("array", Array),
    ]


FORMS = {b"dltensor": Plain, b"dltensor_versioned": Versioned}
# A capsule does not copy its name.
USED = ctypes.create_string_buffer(b"used")


class Consumer:
    """A library that consumes a capsule according to the specification of DLPack."""

    def __init__(self, capsule):
        api = ctypes.pythonapi
        api.PyCapsule_GetName.restype = ctypes.c_char_p
        api.PyCapsule_GetName.argtypes = [ctypes.py_object]
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_void_p]
        name = api.PyCapsule_GetName(capsule)
        self.address = api.PyCapsule_GetPointer(capsule, name)
        assert api.PyCapsule_SetName(capsule, ctypes.addressof(USED)) == 0
        self.tensor = FORMS[name].from_address(self.address)

    @property
    def flags(self):
        return self.tensor.flags if isinstance(self.tensor, Versioned) else None

    @property
    def place(self):
        return self.tensor.array.data

    def bytes(self):
        array = self.tensor.array
        assert (array.code, array.bits, array.lanes, array.dimensions) == (1, 8, 1, 1)
        assert tuple(array.device) == (1, 0) and array.strides[0] == 1 and array.byte_offset == 0
        return ctypes.string_at(array.data, array.shape[0])

    def delete(self):
        """Runs the deleter; ctypes detaches the thread from the interpreter meanwhile."""
        self.tensor.deleter(self.address)


def place_of(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.fixture
def block(data):
    """A block in I/O memory."""
    with forebay.open(data, "direct") as file:
        return next(file.scan(block=64 << 10)).obj


@pytest.mark.parametrize("max_version, flags", [(None, None), ((0, 8), None), (VERSIONED, 0), ((1, 3), 0), ((2, 0), 0)])
def test_memory_is_exported_where_it_lies(data, content, max_version, flags):
    memory = forebay.allocate(1000)
    assert memory.__dlpack_device__() == (1, 0)
    taken = Consumer(memory.__dlpack__(max_version=max_version))
    assert taken.flags == flags and taken.place == place_of(memory)
    if flags is not None:
        assert tuple(taken.tensor.version) == VERSIONED
    with forebay.open(data) as file:
        file.read_into(5, memory)
    del memory
    gc.collect()
    assert taken.bytes() == content[5:1005]
    taken.delete()
    empty = Consumer(forebay.allocate(0).__dlpack__(max_version=max_version))
    assert empty.place is None and empty.bytes() == b""
    empty.delete()


def test_results_of_a_batch_are_exported_with_their_memory(data, content):
    with forebay.open(data) as file:
        views = file.read_many([(10, 100), (5000, 50)])
    taken = Consumer(views[1].obj.__dlpack__())
    del views
    gc.collect()
    assert taken.bytes() == content[10:110] + content[5000:5050]
    taken.delete()


def test_read_only_memory_is_said_to_be_so_or_copied(block, content):
    expected = content[: 64 << 10]
    place = Consumer(block.__dlpack__(max_version=VERSIONED))
    assert place.flags == READ_ONLY and place.bytes() == expected
    for options, flags in (({}, None), ({"copy": True}, None), ({"copy": True, "max_version": VERSIONED}, IS_COPIED)):
        copied = Consumer(block.__dlpack__(**options))
        assert copied.flags == flags and copied.place != place.place and copied.bytes() == expected
        copied.delete()
    same = Consumer(block.__dlpack__(copy=False, max_version=VERSIONED))
    assert same.place == place.place
    same.delete()
    with pytest.raises(BufferError, match="read-only"):
        block.__dlpack__(copy=False)
    place.delete()


def test_arguments_are_checked(block):
    for exporter in (forebay.allocate(10), block):
        Consumer(exporter.__dlpack__(stream=None, dl_device=(1, 0), max_version=VERSIONED)).delete()
        with pytest.raises(BufferError, match="memory of this machine"):
            exporter.__dlpack__(dl_device=(2, 0))
        with pytest.raises(ValueError, match="stream"):
            exporter.__dlpack__(stream=1)
        with pytest.raises(TypeError):
            exporter.__dlpack__(None)


def test_a_block_lives_until_its_consumer_has_deleted_it(program, data):
    """In a separate process, where no other test holds I/O memory."""
    program(
        """
        import gc, sys, threading, time
        sys.path.insert(0, sys.argv[1])
        import forebay
        from test_dlpack import Consumer, VERSIONED

        def held():
            gc.collect()
            return forebay.stats()["memory"]["held_bytes"]

        def comes_to(expected):
            end = time.monotonic() + 60
            while held() != expected:
                assert time.monotonic() < end, (held(), expected)
                time.sleep(0.01)

        file = forebay.open(sys.argv[2], "direct")
        with open(sys.argv[2], "rb") as plain:
            content = plain.read(64 << 10)
        first = held()

        def export():
            with forebay.open(sys.argv[2], "direct") as other:
                return next(other.scan(block=64 << 10)).obj.__dlpack__(max_version=VERSIONED)

        taken = [Consumer(export()) for _ in range(3)]
        comes_to(first + 3 * (64 << 10))
        assert all(consumer.bytes() == content for consumer in taken)
        taken[0].delete()
        comes_to(first + 2 * (64 << 10))
        thread = threading.Thread(target=taken[1].delete)
        thread.start()
        thread.join()
        comes_to(first + (64 << 10))
        capsule = export()
        comes_to(first + 2 * (64 << 10))
        del capsule
        comes_to(first + (64 << 10))
        # The interpreter ends before the last one is deleted, and before a capsule that nothing has taken.
        capsule = export()
        assert taken[2].bytes() == content
        """,
        __file__.rpartition("/")[0],
        data,
    )


def test_capsules_that_nothing_takes_are_freed():
    memory = forebay.allocate(1 << 20)
    for max_version in (None, VERSIONED):
        memory.__dlpack__(max_version=max_version, copy=True)
        before = resident_bytes()
        for _ in range(500):
            memory.__dlpack__(max_version=max_version, copy=True)
        assert resident_bytes() - before < 64 << 20


def test_a_forked_child_gets_no_io_memory(block, content):
    memory = forebay.allocate(5000)
    memoryview(memory)[:] = known(0, 5000)
    taken = Consumer(block.__dlpack__(max_version=VERSIONED))
    capsule = block.__dlpack__()

    def work():
        nonlocal capsule
        for options in ({}, {"max_version": VERSIONED}, {"copy": True}):
            with pytest.raises(BufferError, match="before the process was forked"):
                block.__dlpack__(**options)
        inherited = Consumer(memory.__dlpack__())
        assert inherited.bytes() == known(0, 5000), "ordinary memory is inherited"
        inherited.delete()
        # The child has them and can drop them, although it lacks their memory.
        taken.delete()
        capsule = None
        return "fine"

    assert in_child(work) == "fine"
    assert taken.bytes() == content[: 64 << 10], "the parent's is as it was"
    taken.delete()


def test_arrays_of_numpy(block, data, content):
    numpy = pytest.importorskip("numpy", minversion="2.1", reason="older versions do not ask for versioned capsules")
    memory = forebay.allocate(4096)
    array, seen = numpy.from_dlpack(memory), numpy.from_dlpack(block)
    assert array.ctypes.data == place_of(memory) and array.flags.writeable and not seen.flags.writeable
    with forebay.open(data) as file:
        assert file.read_into(7, array) == 4096
    del memory
    gc.collect()
    assert array.dtype == "u1" and array.tobytes() == content[7:4103] and seen.tobytes() == content[: 64 << 10]
    copied = numpy.from_dlpack(block, copy=True)
    assert copied.flags.writeable and copied.tobytes() == seen.tobytes()
    assert numpy.from_dlpack(block, device="cpu").tobytes() == seen.tobytes()
    arrays = [seen]
    del block, seen
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    array[0] = 5


@pytest.mark.torch
def test_tensors_of_torch(block, data, content):
    torch = pytest.importorskip("torch")
    memory = forebay.allocate(4096)
    tensor = torch.from_dlpack(memory)
    assert tensor.data_ptr() == place_of(memory) and tensor.dtype == torch.uint8
    with forebay.open(data) as file:
        assert file.read_into(7, memory) == 4096
        # The other way: into tensors, which have no buffer.
        for into in (torch.empty(64, 8), torch.empty(512, dtype=torch.bfloat16), torch.empty(4096, dtype=torch.uint8)[5:1029]):
            assert file.read_into(3, into) == into.numel() * into.element_size()
            assert bytes(into.contiguous().view(torch.uint8).flatten().tolist()) == content[3 : 3 + into.numel() * into.element_size()]
        for wrong in (torch.empty(8, 8).T, torch.empty(8, requires_grad=True)):
            with pytest.raises((BufferError, RuntimeError)):
                file.read_into(0, wrong)
    del memory
    gc.collect()
    assert bytes(tensor.tolist()) == content[7:4103]
    assert bytes(torch.from_dlpack(block).tolist()) == content[: 64 << 10]
