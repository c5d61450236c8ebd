"""zarr's own tests of stores, by way of fsspec."""

import pytest

pytest.importorskip("fsspec")
zarr = pytest.importorskip("zarr", minversion="3.0")
pytest.importorskip("pytest_asyncio")
numpy = pytest.importorskip("numpy")
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # noqa: E402
from zarr.core.buffer import cpu  # noqa: E402
from zarr.storage import FsspecStore  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

from forebay.fsspec import ForebayFileSystem  # noqa: E402


class TestForebayStore(StoreTests[FsspecStore, cpu.Buffer]):
    store_cls = FsspecStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        fs = AsyncFileSystemWrapper(ForebayFileSystem(auto_mkdir=True), asynchronous=True)
        return {"fs": fs, "path": str(tmp_path / "store")}

    @pytest.fixture
    async def store(self, store_kwargs):
        return self.store_cls(**store_kwargs)

    async def set(self, store, key, value):
        with open(f"{store.path}/{key}" if self._parent(store, key) else "", "wb") as file:
            file.write(value.to_bytes())

    async def get(self, store, key):
        with open(f"{store.path}/{key}", "rb") as file:
            return self.buffer_cls.from_bytes(file.read())

    @staticmethod
    def _parent(store, key):
        import os

        os.makedirs(os.path.dirname(f"{store.path}/{key}"), exist_ok=True)
        return True

    def test_store_repr(self, store):
        assert "FsspecStore" in repr(store)

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_partial_writes(self, store):
        assert not store.supports_partial_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


def test_an_array(tmp_path):
    path = f"forebay://{tmp_path}/array"
    values = numpy.arange(10_000).reshape(100, 100)
    array = zarr.create_array(path, shape=values.shape, chunks=(10, 25), dtype=values.dtype, storage_options={"auto_mkdir": True})
    array[:] = values
    again = zarr.open_array(path, mode="r")
    assert (again[:] == values).all() and (again[5:17, 3:80:7] == values[5:17, 3:80:7]).all()
