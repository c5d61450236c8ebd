"""`load_file` and `save_file` as in `safetensors.torch`."""

from __future__ import annotations

import os
from typing import Any

from forebay import safetensors
from forebay.safetensors import save_file

__all__ = ["load_file", "save_file"]


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str | None = None
) -> dict[str, Any]:
    """Reads all tensors of a file as tensors of torch on `device`."""
    return safetensors.load_file(filename, device, framework="pt", backend=backend)
