"""`load_file` and `save_file` as in `safetensors.numpy`."""

from __future__ import annotations

import os
from typing import Any

from forebay import safetensors
from forebay.safetensors import save_file

__all__ = ["load_file", "save_file"]


def load_file(filename: str | os.PathLike[str], *, backend: str | None = None) -> dict[str, Any]:
    """Reads all tensors of a file as arrays of numpy."""
    return safetensors.load_file(filename, framework="np", backend=backend)
