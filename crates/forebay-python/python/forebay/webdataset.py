"""The scheme `forebay` in URLs of webdataset, which importing this module registers.

>>> import forebay.webdataset
>>> import webdataset
>>> samples = webdataset.WebDataset("forebay:///srv/shards/{000..099}.tar")

webdataset looks for no entry points. A program whose workers are not forked imports this module where they import it as well, such as at
the top of its main module.
"""

from __future__ import annotations

import os
from typing import Any

from webdataset.gopen import gopen_schemes

import forebay
from forebay._urls import path_of

__all__ = ["gopen"]


def gopen(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> Any:
    """Opens a shard as a file object: to read by Forebay, with read-ahead, or to write by Python."""
    path = os.path.expanduser(path_of(url))
    return forebay.open(path).io() if mode == "rb" else open(path, mode, bufsize)


gopen_schemes["forebay"] = gopen
