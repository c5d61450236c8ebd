"""The plugin of SGLang, with stand-ins that have the signatures of the wheel that sglang_signatures.json names."""

import importlib.metadata
import json
import pathlib
import sys
import types

import pytest

import forebay.safetensors
import forebay.sglang
from test_safetensors import numpy, same
from test_vllm import stand_in

WHEEL = json.loads((pathlib.Path(__file__).parent / "sglang_signatures.json").read_text())


@pytest.fixture
def hooks(monkeypatch):
    """The functions that were registered, by the names of those in whose place they are."""
    found = {}

    def register(cls, target, hook, hook_type, source):
        module, _, name = target.rpartition(".")
        assert module == "sglang.srt.model_loader.weight_utils" and hook_type == "replace"
        found[name] = hook

    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookType = types.SimpleNamespace(REPLACE="replace")
    registry.HookRegistry = type("HookRegistry", (), {"register": classmethod(stand_in("HookRegistry.register", register, WHEEL))})
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    return found


def run_plugin():
    [plugin] = [found for found in importlib.metadata.entry_points(group=WHEEL["plugins"]) if found.name == "forebay"]
    plugin.load()()


@pytest.mark.parametrize("framework", ["np", pytest.param("pt", marks=pytest.mark.torch)])
def test_a_model_is_loaded(hooks, tmp_path, monkeypatch, framework):
    if framework == "pt":
        pytest.importorskip("torch")
    else:
        stream_files = forebay.safetensors.stream_files
        monkeypatch.setattr(forebay.sglang, "stream_files", lambda files, framework: stream_files(files, framework="np"))
    monkeypatch.setenv("SGLANG_PLUGINS", "other, forebay")
    run_plugin()
    files = [str(tmp_path / f"model-{number}.safetensors") for number in range(2)]
    expected = {}
    for file in files:
        tensors = {f"{file}.{number}": numpy.arange(number * 1000, dtype="f4") for number in range(5)}
        forebay.safetensors.save_file(tensors, file)
        expected |= tensors
    assert hooks.keys() == WHEEL["signatures"].keys() - {"HookRegistry.register"}
    for name, hook in hooks.items():
        by_position = hook(files, 8, False)
        by_name = stand_in(name, hook, WHEEL)(files, **({"max_workers": 8} if "max_workers" in WHEEL["signatures"][name] else {}))
        for found in (by_position, by_name):
            same(expected, {name: numpy.array(tensor) for name, tensor in found})


@pytest.mark.parametrize("plugins", [None, "", "other"])
def test_it_is_left_out_unless_it_is_asked_for(hooks, monkeypatch, plugins):
    """SGLang runs every plugin that is installed."""
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    if plugins is not None:
        monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    run_plugin()
    assert not hooks
