"""A data set of byte ranges for torch's DataLoader: one batch of samples is one batch of reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forebay._forebay import Files

if TYPE_CHECKING:
    from forebay._file import Mode

__all__ = ["RangeDataset"]


class RangeDataset:
    """A map-style data set whose samples are ranges of files.

    `paths` are the files, `ranges` for each sample a file's number, an offset and a length: tuples, or an array of shape (n, 3).
    With a single file they may be pairs of offset and length. `transform` makes the sample out of a memoryview of its bytes, such
    as `lambda view: torch.frombuffer(view, dtype=torch.float32)`; without it the samples are memoryviews.

    Each sample has its own memory. With `shared` the samples of a batch are parts of one piece of memory, which saves a copy; a
    sample that is kept, or an object that a transform made over its bytes, then keeps all of the batch. It suits loaders that copy
    samples into their own batch, as torch's default collation does.

    The files may exceed the limit of open files of the process: those that were read last stay open, and others are opened by their
    paths when they are read again. A path that refers to another file by then raises OSError (ESTALE).

    It works with every start method of worker processes, also with fork: a worker opens the files again at its first sample.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        ranges: Sequence[Sequence[int]],
        transform: Callable[[memoryview], Any] | None = None,
        mode: Mode = "adaptive",
        *,
        shared: bool = False,
    ) -> None:
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self._paths = [os.path.abspath(path) for path in paths]
        self._mode: Mode = mode
        self._files = Files(list(paths), mode)
        self._ranges = ranges
        self._transform = transform
        self._is_shared = shared
        width = len(ranges[0]) if len(ranges) else 3
        if width not in (2, 3) or (width == 2 and len(self._paths) != 1):
            raise ValueError(
                "a range is a file's number, an offset and a length; the number may be missing with a single file only"
            )

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Reads the samples with these numbers as one batch."""
        requests = []
        for index in indices:
            number = int(index)
            *file, offset, length = self._ranges[number]
            requests.append((int(file[0]) if file else 0, int(offset), int(length)))
        views = self._files.read_many(requests)
        if not self._is_shared:
            views = [memoryview(bytearray(view)) for view in views]
        return views if self._transform is None else [self._transform(view) for view in views]

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = Files(self._paths, self._mode)
