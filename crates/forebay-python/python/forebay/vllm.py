"""A load format of vLLM: `vllm serve MODEL --load-format forebay`. Importing this module imports vllm.

vLLM finds it by the entry point `vllm.general_plugins` of this package.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from forebay.safetensors import stream_files

__all__ = ["ForebayModelLoader", "register"]


class ForebayModelLoader(DefaultModelLoader):
    """vLLM's loader of safetensors files, which reads the files of a model as one stream (`stream_files`).

    Every process reads all files that the model's index names: vLLM's filters that leave out files or experts have no effect. Files of
    torchao are read by vLLM.
    """

    counter_before_loading_weights: float

    def __init__(self, load_config: Any) -> None:
        # The base class knows its own formats only, and others have the same configuration.
        load_config = copy.copy(load_config)
        load_config.load_format = "safetensors"
        super().__init__(load_config)

    def _get_weights_iterator(self, source: Any) -> Any:
        if getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
            # A tensor of these is made of several.
            return super()._get_weights_iterator(source)
        _, files, *_ = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in stream_files(sorted(files), framework="pt"))


def register() -> None:
    """Makes the load format known to vLLM, which calls this in each of its processes."""
    register_model_loader("forebay")(ForebayModelLoader)
