"""Checkpoints of torch.distributed: in torch's own format, whole whenever a process is killed, from several ranks to fewer."""

import os
import signal
import sys

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def dcp():
    pytest.importorskip("torch", minversion="2.4", reason="torch before 2.4 has no FileSystem to replace")
    return pytest.importorskip("torch.distributed.checkpoint")


def state(start):
    import torch

    numbers = torch.arange(start, start + 5000, dtype=torch.float32)
    return {"weights": numbers.reshape(50, 100), "nested": {"bias": numbers[:7].clone()}, "step": start}


def loaded(dcp, reader):
    import torch

    found = {"weights": torch.zeros(50, 100), "nested": {"bias": torch.zeros(7)}, "step": -1}
    dcp.load(found, storage_reader=reader)
    return found


def same(left, right):
    import torch

    return (
        torch.equal(left["weights"], right["weights"])
        and torch.equal(left["nested"]["bias"], right["nested"]["bias"])
        and left["step"] == right["step"]
    )


@pytest.mark.parametrize("thread_count", [1, 3])
def test_the_format_is_that_of_torch(dcp, tmp_path, thread_count):
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    dcp.save(state(5), storage_writer=CheckpointWriter(tmp_path / "ours", thread_count=thread_count))
    dcp.save(state(6), storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"))
    for reader in (CheckpointReader, dcp.FileSystemReader):
        assert same(loaded(dcp, reader(tmp_path / "ours")), state(5))
        assert same(loaded(dcp, reader(tmp_path / "theirs")), state(6))


def test_a_checkpoint_that_is_replaced_is_the_old_one_or_the_new(dcp, tmp_path):
    """The process that replaces it is killed before each call in turn that writes, names or removes a file."""
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    old, new = state(0), state(1_000_000)
    number, ends = 0, []
    while True:
        dcp.save(old, storage_writer=CheckpointWriter(tmp_path))
        child = os.fork()
        if child == 0:
            left = number

            def kill(frame, event, _):
                nonlocal left
                if event == "c_call" and frame.f_globals["__name__"] in ("forebay._output", "forebay.checkpoint"):
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            code = 1
            try:
                sys.setprofile(kill)
                dcp.save(new, storage_writer=CheckpointWriter(tmp_path))
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), f"call {number}"
        found = loaded(dcp, CheckpointReader(tmp_path))
        ends.append("new" if same(found, new) else "old")
        assert ends[-1] == "new" or same(found, old)
        if code == 0:
            break
        number += 1
    assert ends == sorted(ends, reverse=True) and "old" in ends and ends.count("new") > 1


def test_the_files_of_the_old_checkpoint_are_removed(dcp, tmp_path):
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    files = set()
    (tmp_path / ".forebay-0123.tmp").write_bytes(b"of a save that was killed")
    for number in range(3):
        dcp.save(state(number), storage_writer=CheckpointWriter(tmp_path))
        found = set(os.listdir(tmp_path))
        # Before the first save no metadata show that it is older than a running save.
        left = {".forebay-0123.tmp"} if number == 0 else set()
        assert found & files <= {".metadata"} and len(found - left) == 2 and left <= found
        files = found - left
    assert same(loaded(dcp, CheckpointReader(tmp_path)), state(2))


def test_saves_into_one_folder_at_the_same_time(dcp, tmp_path):
    """The save that ended first removed the files of the other, whose metadata then named them, and lost its own to the other."""
    from forebay._output import Output
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    class Slow(CheckpointWriter):
        def finish(self, metadata, results):
            with Output(tmp_path / "model") as output:
                output.write(b"of another save")
                dcp.save(state(1), storage_writer=CheckpointWriter(tmp_path))
            assert same(loaded(dcp, CheckpointReader(tmp_path)), state(1))
            super().finish(metadata, results)

    for has_old in (False, True):
        if has_old:
            # They are older than both saves, however coarse the clock is.
            for file in tmp_path.iterdir():
                os.utime(file, (1_000_000_000, 1_000_000_000))
        dcp.save(state(2), storage_writer=Slow(tmp_path))
        assert same(loaded(dcp, CheckpointReader(tmp_path)), state(2))
        assert (tmp_path / "model").read_bytes() == b"of another save"
        found = os.listdir(tmp_path)
        assert len(found) == 3, found


def test_a_save_whose_files_are_gone_leaves_the_old_checkpoint(dcp, tmp_path):
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    dcp.save(state(1), storage_writer=CheckpointWriter(tmp_path))
    old = set(tmp_path.iterdir())

    class Robbed(CheckpointWriter):
        def finish(self, metadata, results):
            for file in set(tmp_path.iterdir()) - old:
                file.unlink()
            with pytest.raises(FileNotFoundError, match="another save"):
                super().finish(metadata, results)

    dcp.save(state(2), storage_writer=Robbed(tmp_path))
    assert set(tmp_path.iterdir()) == old
    assert same(loaded(dcp, CheckpointReader(tmp_path)), state(1))


def test_the_working_directory_takes_a_checkpoint(dcp, tmp_path, monkeypatch):
    """The save failed after it had replaced the metadata, because it parsed their folder as an empty name."""
    from forebay.checkpoint import CheckpointReader, CheckpointWriter

    monkeypatch.chdir(tmp_path)
    for number in range(2):
        dcp.save(state(number), storage_writer=CheckpointWriter("."))
        assert same(loaded(dcp, CheckpointReader(".")), state(number))
        assert len(os.listdir()) == 2


def test_ranks_save_and_fewer_ranks_load(dcp, program, tmp_path):
    program(
        """
        import os, sys, traceback
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from forebay.checkpoint import CheckpointReader, CheckpointWriter

        folder = sys.argv[1]
        whole = torch.arange(1000 * 640, dtype=torch.float32).reshape(1000, 640)

        def ranks(count, work):
            children = []
            for rank in range(count):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        store = f"file://{folder}/store-{work.__name__}"
                        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
                        work(init_device_mesh("cpu", (count,)))
                        dist.barrier()
                        dist.destroy_process_group()
                        code = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(code)
                children.append(child)
            for child in children:
                assert os.waitpid(child, 0)[1] == 0, f"a rank of {work.__name__} failed"

        def save(mesh):
            state = {"weights": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}
            dcp.save(state, storage_writer=CheckpointWriter(folder + "/waited"))
            dcp.async_save(state, storage_writer=CheckpointWriter(folder + "/async")).result()

        def load(mesh):
            for name in ("waited", "async"):
                state = {"weights": distribute_tensor(torch.zeros(1000, 640), mesh, [Shard(1)]), "step": 0}
                dcp.load(state, storage_reader=CheckpointReader(f"{folder}/{name}"))
                assert state["step"] == 7
                assert torch.equal(state["weights"].full_tensor(), whole), name

        ranks(3, save)
        ranks(2, load)
        """,
        tmp_path,
        timeout=300,
    )
