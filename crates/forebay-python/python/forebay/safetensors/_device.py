"""Bytes of a file in the memory of a CUDA device, through pinned memory: some chunks are read while others are copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import forebay
from forebay._calls import Calls

__all__ = ["read_to_device"]

# Each is one request of the core, which continues without a poll.
_CHUNK_BYTES = 4 << 20
_CHUNKS = 32


class _Chunk:
    """Pinned memory for one part of the file at a time. It belongs to torch, which neither unmaps it nor lends it to others before
    the copies from it have ended: Forebay registers no memory with CUDA."""

    def __init__(self, torch: Any) -> None:
        self.memory = torch.empty(_CHUNK_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.copied = torch.cuda.Event()

    def begin_read(self, calls: Calls, file: forebay.File, begin: int, end: int) -> None:
        # The copies of its previous part may be under way.
        self.copied.synchronize()
        self.begin, self.end = begin, end
        # Memory and file are aligned alike, so that the disk writes into its place.
        place = begin % _CHUNK_BYTES
        self.part = self.memory[place : place + end - begin]
        self.call = calls.begin(file._begin_read_into, begin, self.part)


def read_to_device(file: forebay.File, ranges: Sequence[tuple[int, int]], torch: Any, device: Any) -> list[Any]:
    """Reads ranges (start and end) that follow one another in a file, at least one. Returns the bytes of each as a tensor on the
    device, with memory of its own."""
    calls = Calls()
    reads: deque[_Chunk] = deque()
    position, stop = ranges[0][0], ranges[-1][1]
    number = 0
    with torch.cuda.device(device):
        targets = [torch.empty(end - begin, dtype=torch.uint8, device=device) for begin, end in ranges]
        count = min(_CHUNKS, stop // _CHUNK_BYTES - position // _CHUNK_BYTES + 1)
        free = deque(_Chunk(torch) for _ in range(count))
        try:
            while True:
                while free and position < stop:
                    end = min(position - position % _CHUNK_BYTES + _CHUNK_BYTES, stop)
                    chunk = free.popleft()
                    chunk.begin_read(calls, file, position, end)
                    reads.append(chunk)
                    position = end
                if not reads:
                    break
                chunk = reads[0]
                if calls.end(chunk.call) != chunk.end - chunk.begin:
                    raise ValueError(f"{file.path} became shorter while it was read")
                reads.popleft()
                while number < len(ranges) and ranges[number][0] < chunk.end:
                    begin, end = ranges[number]
                    first, last = max(begin, chunk.begin), min(end, chunk.end)
                    source = chunk.part[first - chunk.begin : last - chunk.begin]
                    targets[number][first - begin : last - begin].copy_(source, non_blocking=True)
                    if end > chunk.end:
                        break
                    number += 1
                chunk.copied.record()
                free.append(chunk)
            # The caller may use the tensors on any stream.
            for chunk in free:
                chunk.copied.synchronize()
        finally:
            for chunk in reads:
                chunk.call.cancel()
    return targets
