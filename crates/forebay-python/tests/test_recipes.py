"""The code of the README and of docs/python.md."""

import pathlib
import re

import pytest

from conftest import known

ROOT = pathlib.Path(__file__).parents[3]
PAGES = {"README.md": 1, "docs/python.md": 10}


def recipes(page):
    text = (ROOT / page).read_text()
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
        heading = re.findall(r"^## (.*)", text[: block.start()], re.M)[-1]
        found.append(pytest.param(block[1], id=f"{page}, {heading} {len(found)}"))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_recipe_is_found(page):
    assert len(recipes(page)) >= PAGES[page]


@pytest.mark.parametrize("code", [recipe for page in PAGES for recipe in recipes(page)])
def test_the_code_on_the_page_runs(code, tmp_path, monkeypatch, capsys):
    numpy = pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples.bin").write_bytes(known(0, 4_100_000))
    (tmp_path / "big.bin").write_bytes(known(0, 3_000_000))
    if "safetensors" in code:
        saving = pytest.importorskip("safetensors.numpy")
        saving.save_file(
            {"bias": numpy.ones(7, "f4"), "embedding": numpy.ones((1000, 16), "f2")}, tmp_path / "model.safetensors"
        )
    if "zarr" in code:
        pytest.importorskip("zarr", minversion="3.0")
    if "parquet" in code:
        pytest.importorskip("fsspec")
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.table({"price": [1.0, 2.0], "name": ["a", "b"]}), tmp_path / "table.parquet")
    exec(compile(code, "<recipe>", "exec"), {"__name__": "__recipe__"})
    assert capsys.readouterr().out.strip(), "each recipe prints something"
