"""Checkpoints of torch.distributed, written and read past the page cache. Importing this module imports torch.

>>> import torch.distributed.checkpoint as dcp
>>> from forebay.checkpoint import CheckpointReader, CheckpointWriter
>>> dcp.save(state, storage_writer=CheckpointWriter("checkpoint"))         # or dcp.async_save
>>> dcp.load(state, storage_reader=CheckpointReader("checkpoint"))

The format is that of torch's FileSystemWriter and FileSystemReader: each reads what the other wrote.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

import forebay
from forebay._output import Output, synced_folder

__all__ = ["CheckpointReader", "CheckpointWriter"]


class _Files(FileSystem):
    """The files of a checkpoint: each is there when it is whole and durable."""

    def __init__(self, background: bool) -> None:
        self._background = background
        # When the metadata that the last `rename` replaced were written.
        self.replaced_ns = -1

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode == "rb":
            with forebay.open(path, background=self._background) as file, file.io() as stream:
                yield stream
        else:
            with Output(path, self._background) as output:
                yield output

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        with synced_folder(Path(new_path).parent):
            os.replace(path, new_path)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Removes nothing: torch removes the old metadata before it renames the new, and `rename` replaces them."""
        self.replaced_ns = os.stat(path).st_mtime_ns


class CheckpointWriter(FileSystemWriter):
    """A StorageWriter for torch.distributed.checkpoint's save and async_save.

    Every file is durable before the metadata name it, and the metadata are written last. Data files have new names in each save:
    while a checkpoint is replaced, all of the old or all of the new checkpoint exists, even if the processes are killed. Files of
    the old checkpoint, and files of earlier saves that were killed, are removed at the end. Files that were written after the old
    checkpoint stay: another save may be running. The checkpoint is that of the save that ends last; a save of which a file was
    removed raises FileNotFoundError and leaves the checkpoint unchanged.

    The writes give way to other I/O of the process unless `background` is False. `options` are those of torch's FileSystemWriter,
    such as `thread_count`.
    """

    def __init__(self, path: str | os.PathLike[str], *, background: bool = True, **options: Any) -> None:
        # The files are durable without `sync_files`, which wants a descriptor.
        super().__init__(path, sync_files=False, **options)
        self._files = self.fs = _Files(background)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        named = []
        for plan in super().prepare_global_plan(plans):
            prefix = dataclasses.replace(plan.storage_data, prefix=f"__{self.save_id}{plan.storage_data.prefix}")
            named.append(dataclasses.replace(plan, storage_data=prefix))
        return named

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        named = {written.storage_data.relative_path for rank in results for written in rank}
        for name in named:
            path = Path(self.path, name)
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, "another save removed it; save into one folder at a time", str(path))
        self._files.replaced_ns = -1
        super().finish(metadata, results)
        # Other ranks may still write where each has its own metadata.
        is_last = getattr(self, "use_collectives", True)
        for pattern in ("__*.distcp", ".forebay-*.tmp") if is_last else (f"*__{self.rank}_*.distcp",):
            for file in Path(self.path).glob(pattern):
                with suppress(FileNotFoundError):
                    if file.name not in named and file.stat().st_mtime_ns <= self._files.replaced_ns:
                        file.unlink()


class CheckpointReader(FileSystemReader):
    """A StorageReader for torch.distributed.checkpoint's load, on any number of ranks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.fs = _Files(False)
