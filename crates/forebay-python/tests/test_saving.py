"""Saved safetensors files: what the package safetensors reads of them, and the file that is there whenever the process is killed."""

import errno
import fcntl
import os
import signal
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay
from forebay import _output
from forebay.safetensors import load_file, save_file
from test_safetensors import many, numpy, safetensors, same, tensors, theirs


@many
@given(tensors=tensors(), metadata=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_theirs_reads_the_same_tensors(tmp_path, tensors, metadata):
    path = tmp_path / "model.safetensors"
    try:
        forebay.safetensors.numpy.save_file(tensors, path, metadata)
    except UnicodeEncodeError:
        return
    same(tensors, safetensors.numpy.load_file(path))
    same(tensors, load_file(path, framework="np"))
    with theirs.safe_open(path, "np") as file:
        assert file.metadata() == (metadata or None)


def test_arguments_have_the_names_of_theirs(tmp_path):
    # A program that named its arguments as those of safetensors.numpy ended with a TypeError.
    arrays = {"a": numpy.arange(7)}
    for number, module in enumerate((safetensors.numpy, forebay.safetensors.numpy)):
        path = tmp_path / str(number)
        module.save_file(tensor_dict=arrays, filename=path, metadata={"step": "5"})
        same(arrays, module.load_file(filename=path))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_of_any_layout_and_order_of_bytes(tmp_path):
    """Those of more than 8 MiB are written in parts."""
    base = numpy.arange(3_000_000, dtype="i8")
    arrays = {
        "transposed": base.reshape(1000, 3000).T,
        "steps": base[::-1][::2],
        "long rows": numpy.broadcast_to(base, (2, 3_000_000)),
        "big": base.astype(">i8"),
        "matrix": numpy.asmatrix(base.reshape(1, -1)[:, ::2]),
        "long": base,
        "scalar": numpy.float32(2.5),
        "number": numpy.array(7, dtype="u1"),
        "none": numpy.zeros((3, 0), "f2"),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path)
    for name, found in safetensors.numpy.load_file(path).items():
        expected = numpy.asarray(arrays.pop(name))
        assert found.shape == expected.shape and found.dtype == expected.dtype.newbyteorder("<"), name
        assert (found == expected).all(), name
    assert not arrays
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_memory_is_bounded(program, tmp_path):
    program(
        """
        import re, sys
        import numpy
        from forebay.safetensors import save_file
        rows = numpy.broadcast_to(numpy.arange(1000.0), (50_000, 1000))
        peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
        before = peak()
        save_file({"rows": rows}, sys.argv[1])
        assert peak() - before < 200_000, f"{peak() - before} KiB for a tensor of 400 MB"
        """,
        tmp_path / "model.safetensors",
    )


def test_a_process_that_is_killed_leaves_the_old_file_or_the_new(tmp_path, monkeypatch):
    """It is killed before each call in turn that a save makes."""
    monkeypatch.setattr(_output, "_CHUNK_BYTES", 4096)
    path = tmp_path / "model.safetensors"
    old = {"weights": numpy.arange(5_000)}
    new = {"weights": numpy.arange(7_000), "bias": numpy.ones(3)}

    def save(number):
        """Returns how the child ended that is killed before its call of this number."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = number

        def kill(frame, event, _):
            nonlocal left
            if event == "c_call" and frame.f_globals["__name__"] in ("forebay._output", "shutil"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.setprofile(kill)
            save_file(new, path)
            code = 0
        finally:
            os._exit(code)

    number, ends = 0, []
    while True:
        save_file(old, path)
        code = save(number)
        assert code in (0, -signal.SIGKILL), f"call {number}"
        found = load_file(path, framework="np")
        ends.append("new" if "bias" in found else "old")
        same(new if "bias" in found else old, found)
        left = [file for file in tmp_path.iterdir() if file != path]
        assert len(left) <= 1 and all(file.name.startswith(".forebay-") for file in left)
        for file in left:
            file.unlink()
        if code == 0:
            break
        number += 1
    assert ends == sorted(ends, reverse=True) and ends.count("old") > 20 and ends.count("new") > 2, ends


def test_a_signal_at_any_moment_leaves_the_old_file_or_the_new(program, tmp_path):
    program(
        """
        import signal, sys
        import numpy
        from forebay.safetensors import load_file, save_file

        class Stop(Exception): pass
        def stop(*_): raise Stop
        signal.signal(signal.SIGALRM, stop)
        path, arrays = sys.argv[1], [numpy.full(2_000_000, number) for number in range(2)]
        save_file({"a": arrays[0]}, path)
        for number in range(1, 40):
            try:
                signal.setitimer(signal.ITIMER_REAL, number / 1000)
                save_file({"a": arrays[number % 2]}, path)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                pass
            found = load_file(path, framework="np")["a"]
            assert len(found) == 2_000_000 and (found == found[0]).all()
        """,
        tmp_path / "model.safetensors",
    )


def test_bytes_are_durable_before_the_name_is_theirs(tmp_path, monkeypatch):
    calls = []

    def note(owner, name):
        made = getattr(owner, name)

        def call(*arguments, **more):
            calls.append(name)
            return made(*arguments, **more)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((forebay.File, "_begin_write"), (forebay.File, "sync"), (os, "replace"), (os, "fsync")):
        note(owner, name)
    save_file({"a": numpy.zeros(3_000_000)}, tmp_path / "model.safetensors")
    assert calls == ["_begin_write"] * 3 + ["sync", "replace", "fsync"]


@pytest.mark.parametrize("background", [True, False])
def test_a_save_that_fails_leaves_the_old_file(program, tmp_path, background):
    program(
        """
        import errno, os, resource, signal, sys
        import numpy
        from forebay.safetensors import load_file, save_file
        path = sys.argv[1]
        background = sys.argv[2] == "True"
        save_file({"a": numpy.arange(5)}, path, background=background)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit in (0, 1 << 20, 30 << 20, 70 << 20):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                save_file({"a": numpy.zeros(10_000_000)}, path, background=background)
            except OSError as error:
                assert error.errno == errno.EFBIG, error
            else:
                raise SystemExit(f"80 MB were saved into {limit}")
            assert load_file(path, framework="np")["a"].tolist() == [0, 1, 2, 3, 4]
            assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
        """,
        tmp_path / "model.safetensors",
        background,
    )


def test_a_save_without_a_descriptor_for_its_folder_leaves_the_old_file(program, tmp_path):
    """The folder was opened to be synced after the name was replaced: the save raised, and the old file was gone."""
    program(
        """
        import errno, os, resource, sys
        from forebay._output import Output
        path = sys.argv[1]
        with open(path, "wb") as file:
            file.write(b"old")
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        own = []
        try:
            with Output(path) as output:
                # Whole blocks, which need no second descriptor.
                output.write(bytes(1 << 20))
                try:
                    while True:
                        own.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    pass
        except OSError as error:
            assert error.errno == errno.EMFILE, error
        else:
            raise SystemExit("it was saved without a descriptor")
        for descriptor in own:
            os.close(descriptor)
        with open(path, "rb") as file:
            assert file.read() == b"old"
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
        """,
        tmp_path / "file",
    )


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), _output.Output(path) as output:
        assert output.write(bytes(20 << 20)) == output.tell() == 20 << 20
        raise KeyError("of the program")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    with pytest.raises(IsADirectoryError), _output.Output(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["file"] and os.listdir(tmp_path.parent).count(tmp_path.name) == 1
    with pytest.raises(FileNotFoundError):
        _output.Output(tmp_path / "none" / "file")


def test_links_and_modes_stay(tmp_path):
    (tmp_path / "link").symlink_to("file")
    save_file({"a": numpy.arange(3)}, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "file").chmod(0o604)
    save_file({"a": numpy.arange(4)}, tmp_path / "link")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o604
    assert len(load_file(tmp_path / "file", framework="np")["a"]) == 4


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_only_a_regular_file_is_replaced(tmp_path, kind):
    """A save to /dev/null or to a pipe put a regular file in its place."""
    path, link = tmp_path / "special", tmp_path / "link"
    os.mknod(path, kind | 0o600)
    link.symlink_to("special")
    for name in (path, link):
        with pytest.raises(FileExistsError, match="only a regular file"):
            save_file({"a": numpy.arange(3)}, name)
    late = tmp_path / "late"
    with pytest.raises(FileExistsError, match="only a regular file"), _output.Output(late) as output:
        output.write(b"new")
        os.mknod(late, kind | 0o600)
    assert stat.S_IFMT(path.stat().st_mode) == stat.S_IFMT(late.stat().st_mode) == kind
    assert sorted(os.listdir(tmp_path)) == ["late", "link", "special"]


def test_a_temporary_shows_no_more_than_the_file_that_it_replaces(tmp_path):
    """The new bytes of a file that only its owner may read could be read by all until they replaced it."""
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.touch()

    def save():
        """Returns the mode of the temporary."""
        with _output.Output(path) as output:
            output.write(b"new")
            [temporary] = tmp_path.glob(".forebay-*.tmp")
            if is_removed:
                path.unlink()
            return stat.S_IMODE(temporary.stat().st_mode)

    is_removed = False
    assert save() == stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    for is_removed in (False, True):
        for mode in (0o600, 0o604):
            path.chmod(mode)
            assert save() & 0o077 == 0
            assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == b"new"


def test_a_save_needs_no_direct_io(tmp_path, monkeypatch):
    """Saves failed on file systems that refuse O_DIRECT."""
    made = forebay.open

    def refuse(path, mode="adaptive", *arguments, **more):
        if mode == "direct":
            raise OSError(errno.EINVAL, "this file system refuses direct I/O", path)
        return made(path, mode, *arguments, **more)

    monkeypatch.setattr(forebay, "open", refuse)
    arrays = {"a": numpy.arange(3_000_000)}
    save_file(arrays, tmp_path / "file")
    same(arrays, load_file(tmp_path / "file", framework="np"))


@pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT is Linux's")
def test_a_save_is_direct_where_the_file_system_takes_that(tmp_path):
    def is_direct(file):
        return bool(fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_DIRECT)

    try:
        direct = forebay.open(tmp_path / "direct", "direct", write=True, create=True)
    except (OSError, forebay.Error):
        pytest.skip("the file system refuses O_DIRECT")
    with direct, _output.Output(tmp_path / "file") as output:
        output.write(bytes(20 << 20))
        assert is_direct(output._file) == is_direct(direct)


@pytest.mark.parametrize(
    "tensors, metadata, error",
    [
        ({"a": numpy.zeros(3, "c16")}, None, TypeError),
        ({"a": numpy.array(["text"])}, None, TypeError),
        ({"a": [1.0, 2.0]}, None, TypeError),
        ({"a": numpy.zeros(3)}, {"a": 1}, TypeError),
        ({"__metadata__": numpy.zeros(3)}, None, ValueError),
        ({5: numpy.zeros(3)}, None, ValueError),
        ({"\ud800": numpy.zeros(3)}, None, ValueError),
        ({"a": numpy.zeros(3)}, {"a": "x" * 100_000_000}, ValueError),
    ],
)
def test_what_the_format_cannot_have_is_refused_first(tmp_path, tensors, metadata, error):
    with pytest.raises(error):
        save_file(tensors, tmp_path / "model.safetensors", metadata)
    assert os.listdir(tmp_path) == []


def test_types_of_ml_dtypes(tmp_path):
    types = pytest.importorskip("ml_dtypes")
    path = tmp_path / "model.safetensors"
    arrays = {name: numpy.arange(5).astype(getattr(types, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    save_file(arrays, path)
    same(arrays, load_file(path, framework="np"))


@pytest.mark.torch
def test_tensors_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    saving = pytest.importorskip("safetensors.torch")
    from forebay.safetensors.torch import save_file as save

    base = torch.arange(4_000_000, dtype=torch.float32)
    tensors = {
        "plain": base,
        "parameter": torch.nn.Parameter(base[:10].reshape(2, 5)),
        "transposed": base.reshape(2000, 2000).T,
        "steps": base[::3],
        "expanded": base[:3].expand(1_500_000, 3),
        "bfloat16": base[:7].to(torch.bfloat16),
        "bool": base[:7] > 3,
        "conjugate": torch.complex(base[:7], base[:7]).conj(),
        "negative": torch.complex(base[:7], base[:7]).conj().imag,
        "number": torch.tensor(5),
        "none": torch.empty(0, 3),
    }
    path = tmp_path / "model.safetensors"
    save(tensors, path, {"format": "pt"})
    for found in (saving.load_file(path), load_file(path, framework="pt")):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor.detach().resolve_conj()), name
    with pytest.raises(TypeError, match="sparse"):
        save({"a": base[:9].reshape(3, 3).to_sparse()}, path)

    class Wrapper(torch.Tensor):
        """A tensor without memory, as those of torch.distributed and of torchao are."""

        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (3, 4), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            raise NotImplementedError(f"{function}")

    # Regression: the process read at address 0.
    for tensor in (Wrapper(), torch.empty(3, device="meta")):
        with pytest.raises((TypeError, RuntimeError)):
            save({"a": tensor}, path)
