"""Storage I/O at the speed of the device.

>>> import forebay
>>> with forebay.open("points.bin") as file:
...     head = file.read(0, 100)                                    # bytes, any offset and length
...     file.read_many([(0, 4096), (1_000_000, 512)], out=array)    # one batch into your array
...     for block in file.scan():                                   # read-only memoryviews, without a copy
...         consume(block)

One engine serves the process. It starts at the first use: importing this package makes no thread and no ring.
"""

from __future__ import annotations

import atexit as _atexit

from forebay._file import File, open, read_many, aread_many
from forebay._forebay import (
    Block,
    Error,
    Memory,
    Scan,
    __version__,
    allocate,
    close_at_exit as _close_at_exit,
    configure,
    doctor,
    stats,
)

__all__ = [
    "Block",
    "Error",
    "File",
    "Memory",
    "Scan",
    "__version__",
    "allocate",
    "aread_many",
    "configure",
    "doctor",
    "open",
    "read_many",
    "stats",
]

_atexit.register(_close_at_exit)
