"""`load_file` and `save_file` as in `safetensors.numpy`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from forebay import safetensors

__all__ = ["load_file", "save_file"]


def load_file(filename: str | os.PathLike[str], *, backend: str | None = None) -> dict[str, Any]:
    """Reads all tensors of a file as arrays of numpy."""
    return safetensors.load_file(filename, framework="np", backend=backend)


def save_file(
    tensor_dict: Mapping[str, Any],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    background: bool = True,
) -> None:
    """Saves arrays of numpy, as `forebay.safetensors.save_file` does."""
    safetensors.save_file(tensor_dict, filename, metadata, background=background)
