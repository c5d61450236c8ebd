"""The load format of vLLM, with stand-ins that have the signatures of the wheel that vllm_signatures.json names."""

import importlib.metadata
import json
import pathlib
import sys
import types

import pytest

numpy = pytest.importorskip("numpy")

import forebay.safetensors  # noqa: E402
from test_safetensors import same  # noqa: E402

WHEEL = json.loads((pathlib.Path(__file__).parent / "vllm_signatures.json").read_text())


def stand_in(name, body, wheel=WHEEL):
    """Returns a function of the wheel's signature, which gives `body` its arguments by their names."""
    scope = {"body": body}
    exec(f"def call({wheel['signatures'][name]}): return body(**locals())", scope)
    return scope["call"]


Source = stand_in("DefaultModelLoader.Source", types.SimpleNamespace)
LoadConfig = stand_in("LoadConfig", types.SimpleNamespace)


def init(self, load_config):
    self.load_config = load_config
    self.counter_before_loading_weights = 0.0


def prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
    if self.load_config.load_format != "safetensors":
        raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
    folder = pathlib.Path(model_name_or_path, subfolder or "")
    files = sorted(map(str, folder.glob("*.safetensors")), reverse=True)
    return str(folder), files, True, "model.safetensors.index.json"


def get_all_weights(self, model_config, model):
    for source in (Source(model_config.model, model_config.revision), *model.secondary_weights):
        yield from self._get_weights_iterator(source)


@pytest.fixture
def loader_of(monkeypatch):
    """Returns the loader for a configuration, as vLLM does once it has run its plugins."""
    formats = {}
    methods = {
        "__init__": init,
        "_prepare_weights": prepare_weights,
        "_get_weights_iterator": lambda self, source: iter([("read by vllm", source)]),
        "get_all_weights": get_all_weights,
        "load_weights": lambda self, model, model_config: model.load_weights(self.get_all_weights(model_config, model)),
    }
    methods = {name: stand_in(f"DefaultModelLoader.{name}", body) for name, body in methods.items()}
    register = stand_in("register_model_loader", lambda load_format: lambda loader: formats.setdefault(load_format, loader))
    contents = {
        "vllm": {},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {"register_model_loader": register},
        "vllm.model_executor.model_loader.default_loader": {"DefaultModelLoader": type("DefaultModelLoader", (), methods)},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "forebay.vllm", raising=False)
    [plugin] = [found for found in importlib.metadata.entry_points(group=WHEEL["plugins"]) if found.name == "forebay"]
    plugin.load()()
    return stand_in("get_model_loader", lambda load_config: formats[load_config.load_format](load_config))


class Model:
    secondary_weights = ()

    def load_weights(self, weights):
        self.found = {name: numpy.array(tensor) for name, tensor in weights}


@pytest.mark.parametrize("framework", ["np", pytest.param("pt", marks=pytest.mark.torch)])
def test_a_model_is_loaded(loader_of, tmp_path, monkeypatch, framework):
    if framework == "pt":
        pytest.importorskip("torch")
    else:
        stream_files = forebay.safetensors.stream_files
        monkeypatch.setattr(sys.modules["forebay.vllm"], "stream_files", lambda files, framework: stream_files(files, framework="np"))
    expected = {}
    (tmp_path / "more").mkdir()
    for place, prefix in (("model-1", ""), ("model-2", ""), ("more/model", "head.")):
        tensors = {f"{place}.{number}": numpy.arange(number * 1000, dtype="f4") for number in range(5)}
        forebay.safetensors.save_file(tensors, tmp_path / f"{place}.safetensors")
        expected |= {prefix + name: tensor for name, tensor in tensors.items()}
    model, config = Model(), LoadConfig(load_format="forebay")
    model.secondary_weights = (Source(str(tmp_path), None, subfolder="more", prefix="head."),)
    loader = loader_of(config)
    loader.load_weights(model, types.SimpleNamespace(model=str(tmp_path), revision=None))
    same(expected, model.found)
    assert list(model.found)[0].startswith("model-1"), "in the order of the files"
    assert loader.counter_before_loading_weights > 0
    assert config.load_format == "forebay", "the caller's configuration is as it was"


def test_files_of_torchao_are_read_by_vllm(loader_of, tmp_path):
    loader = loader_of(LoadConfig(load_format="forebay", safetensors_load_strategy="torchao"))
    model = Model()
    model.load_weights = lambda weights: setattr(model, "found", dict(weights))
    loader.load_weights(model, types.SimpleNamespace(model=str(tmp_path), revision="5"))
    assert model.found["read by vllm"].revision == "5"
