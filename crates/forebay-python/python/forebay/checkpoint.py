"""Checkpoints of torch.distributed, written and read past the page cache. Importing this module imports torch.

>>> import torch.distributed.checkpoint as dcp
>>> from forebay.checkpoint import CheckpointReader, CheckpointWriter
>>> dcp.save(state, storage_writer=CheckpointWriter("checkpoint"))         # or dcp.async_save
>>> dcp.load(state, storage_reader=CheckpointReader("checkpoint"))

The format is that of torch's FileSystemWriter and FileSystemReader: each reads what the other wrote.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

import forebay
from forebay._output import Output, sync_folder

__all__ = ["CheckpointReader", "CheckpointWriter"]


class _Files(FileSystem):
    """The files of a checkpoint: each is there when it is whole and durable."""

    def __init__(self, background: bool) -> None:
        self._background = background

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode == "rb":
            with forebay.open(path, background=self._background) as file, file.io() as stream:
                yield stream
        else:
            with Output(path, self._background) as output:
                yield output

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        os.replace(path, new_path)
        sync_folder(os.path.dirname(new_path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Nothing: torch removes the old metadata before it renames the new, and `rename` replaces them."""


class CheckpointWriter(FileSystemWriter):
    """A StorageWriter for torch.distributed.checkpoint's save and async_save.

    Every file is durable before the metadata name it, and the metadata come last. Data files have new names in each save: while a
    checkpoint is replaced, all of the old one or all of the new one is there, whenever the processes are killed. Data files in the
    folder that the new metadata do not name are removed at the end: those of the old checkpoint, and of saves that were killed.

    The writes give way to other I/O of the process unless `background` is False. `options` are those of torch's FileSystemWriter,
    such as `thread_count`.
    """

    def __init__(self, path: str | os.PathLike[str], *, background: bool = True, **options: Any) -> None:
        # The files are durable without `sync_files`, which wants a descriptor.
        super().__init__(path, sync_files=False, **options)
        self.fs = _Files(background)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        named = []
        for plan in super().prepare_global_plan(plans):
            prefix = dataclasses.replace(plan.storage_data, prefix=f"__{self.save_id}{plan.storage_data.prefix}")
            named.append(dataclasses.replace(plan, storage_data=prefix))
        return named

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        super().finish(metadata, results)
        named = {info.relative_path for info in metadata.storage_data.values()}
        # Other ranks may still write where each has its own metadata.
        is_last = getattr(self, "use_collectives", True)
        for pattern in ("__*.distcp", ".forebay-*.tmp") if is_last else (f"*__{self.rank}_*.distcp",):
            for file in Path(self.path).glob(pattern):
                if file.name not in named:
                    file.unlink(missing_ok=True)


class CheckpointReader(FileSystemReader):
    """A StorageReader for torch.distributed.checkpoint's load, on any number of ranks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.fs = _Files(False)
