"""A plugin of SGLang: `SGLANG_PLUGINS=forebay` makes it read safetensors files by Forebay.

SGLang finds it by the entry point `sglang.srt.plugins` of this package.
"""

from __future__ import annotations

import os
from typing import Any

from forebay.safetensors import stream_files

__all__ = ["register"]

_MODULE = "sglang.srt.model_loader.weight_utils"
_ITERATORS = ("buffered_multi_thread_safetensors_weights_iterator", "safetensors_weights_iterator")


def _weights_iterator(hf_weights_files: Any, *_: Any, **__: Any) -> Any:
    """Yields the tensors of the files as one stream. The other arguments say how SGLang itself would read them."""
    return stream_files(hf_weights_files, framework="pt")


def register() -> None:
    """Replaces SGLang's iterators; it calls this in each of its processes."""
    # Without this variable SGLang runs every plugin that is installed.
    if "forebay" not in map(str.strip, os.environ.get("SGLANG_PLUGINS", "").split(",")):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in _ITERATORS:
        HookRegistry.register(f"{_MODULE}.{name}", _weights_iterator, HookType.REPLACE)
