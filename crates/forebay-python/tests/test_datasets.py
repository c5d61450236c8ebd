"""The data set of ranges."""

import pickle

import pytest

import forebay.torch
from forebay.torch import RangeDataset
from conftest import known


@pytest.fixture
def paths(tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(known(number * 5000, number * 5000 + 50_000))
    return paths


RANGES = [(number % 3, number * 100, 50 + number) for number in range(90)]
EXPECTED = [known(file * 5000 + offset, file * 5000 + offset + length) for file, offset, length in RANGES]


def test_samples_are_the_bytes_of_their_ranges(paths):
    numpy = pytest.importorskip("numpy")
    for ranges in (RANGES, numpy.array(RANGES)):
        samples = RangeDataset(paths, ranges)
        assert len(samples) == 90
        assert bytes(samples[7]) == EXPECTED[7]
        assert list(map(bytes, samples.__getitems__([5, 80, 5]))) == [EXPECTED[5], EXPECTED[80], EXPECTED[5]]
        samples.close()
    single = RangeDataset(paths[1], [(100, 5), (0, 9)], transform=bytes)
    assert single.__getitems__([0, 1]) == [known(5100, 5105), known(5000, 5009)]
    with pickle_of(single) as again:
        assert again[0] == known(5100, 5105)
    with pytest.raises(ValueError, match="single file"):
        RangeDataset(paths, [(1, 2)])
    with pytest.raises(FileNotFoundError):
        RangeDataset("none", [(1, 2)])


class pickle_of:
    def __init__(self, samples):
        self.samples = pickle.loads(pickle.dumps(samples))

    def __enter__(self):
        return self.samples

    def __exit__(self, *_):
        self.samples.close()


def test_a_batch_of_samples_is_one_batch_of_reads(paths, batches):
    calls = batches(forebay.torch)
    samples = RangeDataset(paths, RANGES)
    samples.__getitems__(list(range(64)))
    assert calls == [64]


def test_a_kept_sample_does_not_keep_its_batch(paths):
    """Regression: one sample of 50 bytes kept the memory of the 64 that were read with it."""
    numpy = pytest.importorskip("numpy")
    samples = RangeDataset(paths, RANGES)
    kept = samples.__getitems__(list(range(64)))[3]
    assert len(kept.obj) == len(kept) == 53 and not kept.readonly and kept == EXPECTED[3]
    arrays = RangeDataset(paths, RANGES, transform=lambda view: numpy.frombuffer(view, "u1"))
    kept = arrays.__getitems__(list(range(64)))[3]
    assert len(kept.base.obj) == 53 and kept.tobytes() == EXPECTED[3]
    shared = RangeDataset(paths, RANGES, shared=True)
    batch = shared.__getitems__(list(range(64)))
    assert {id(view.obj) for view in batch} == {id(batch[0].obj)}
    assert list(map(bytes, batch)) == EXPECTED[:64]
    with pickle_of(shared) as again:
        assert again._is_shared and again[7] == EXPECTED[7]


@pytest.mark.torch
def test_a_loader_reads_each_batch_at_once(paths, batches):
    torch = pytest.importorskip("torch", minversion="2.0", reason="torch before 2.0 asks for one sample at a time")
    calls = batches(forebay.torch)
    as_tensor = lambda view: torch.frombuffer(view, dtype=torch.uint8)  # noqa: E731
    samples = RangeDataset(paths, [(file, offset, 50) for file, offset, _ in RANGES], as_tensor, shared=True)
    found = torch.cat(list(torch.utils.data.DataLoader(samples, batch_size=20)))
    assert bytes(found.flatten().tolist()) == b"".join(sample[:50] for sample in EXPECTED)
    assert calls == [20, 20, 20, 20, 10]


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_of_torch(paths, method):
    torch = pytest.importorskip("torch")
    samples = RangeDataset(paths, RANGES, transform=bytes)
    samples[0]
    loader = torch.utils.data.DataLoader(
        samples, batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=list
    )
    assert [sample for batch in loader for sample in batch] == EXPECTED
