"""All tensors of a safetensors file on a GPU: Forebay compared with the package safetensors. Run by `scripts/bench gpu`.

It writes the file, and removes it at the end. In each pair both loaders load it once, each in a separate process and with the file
dropped from the page cache, and every other pair has the other order. The clock starts with a device that is ready, and ends when all
bytes are there. Checksums, which the GPU computes, compare them with the bytes of plain reads. It ends within four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import zipfile
from typing import Any

from bench import Sample, evict, write_model

# Of the four minutes: the rest is for the import of torch before it, and the removal of the file.
LIMIT_SECONDS = 220
TENSORS = 300
LOADERS = {"safetensors": "safetensors.torch", "forebay": "forebay.safetensors.torch"}


class LimitReached(Exception):
    pass


def missing() -> str:
    """Returns the reason why nothing can be measured here, or nothing."""
    if sys.version_info < (3, 11):
        return f"{sys.executable} is older than Python 3.11: no load to a GPU was measured"
    for package in ("torch", "safetensors", "numpy"):
        if importlib.util.find_spec(package) is None:
            return f"{sys.executable} has no package {package}: no load to a GPU was measured"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no CUDA device here: no load to a GPU was measured"


def plain_load(path: str, device: str) -> dict[str, Any]:
    """Returns the tensors of the file by reads of Python alone."""
    import torch

    tensors = {}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, described in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
            begin, end = described["data_offsets"]
            values = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.float16)
            tensors[name] = values.reshape(described["shape"]).to(device)
    return tensors


def digest(tensors: dict[str, Any]) -> str:
    """Returns a text that differs where a name, a type, a shape, or a byte or its place does."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        # Of torch.float16, and each has a multiple of 128 bytes.
        words = tensor.reshape(-1).view(torch.int64)
        # An odd factor loses no bit of a product modulo 2^64.
        factors = torch.arange(1, 2 * words.numel(), 2, device=words.device)
        total.update(repr((name, tensor.dtype, tuple(tensor.shape), tensor.device.type, int((words * factors).sum()))).encode())
    return total.hexdigest()


def load(loader: str, path: str) -> dict[str, Any]:
    """Loads the file once, in a separate process."""
    import torch

    load_file = importlib.import_module(LOADERS[loader]).load_file if loader in LOADERS else plain_load
    if loader == "forebay":
        importlib.import_module("forebay").stats()
    torch.ones(1, device="cuda").sum().item()
    tensors: dict[str, Any] = {}

    def work() -> int:
        tensors.update(load_file(path, device="cuda"))
        torch.cuda.synchronize()
        return sum(tensor.nbytes for tensor in tensors.values())

    result = Sample(path, 0, 0, 0, "", is_cold=True).measured(work)
    return {**result, "digest": digest(tensors), "device": torch.cuda.get_device_name()}


def not_cold(path: str) -> str:
    """Returns the reason why loads of a dropped file may not be cold, or nothing."""
    descriptor = os.open(path, os.O_RDONLY)
    found, places = 0, 64
    try:
        for number in range(places):
            with contextlib.suppress(BlockingIOError):
                found += os.preadv(descriptor, [bytearray(1)], os.path.getsize(path) * number // places, os.RWF_NOWAIT)
    except OSError as error:
        return f"the kernel does not say whether a file is in the page cache ({error.strerror})"
    finally:
        os.close(descriptor)
    return f"the page cache keeps {found / places:.0%} of a dropped file here" if found else ""


def run(loader: str, path: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--load", loader, path]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        sys.exit(f"error: the load by {loader} failed, see above")
    return dict(json.loads(done.stdout))


def measure(arguments: argparse.Namespace, folder: pathlib.Path) -> list[dict[str, dict[str, Any]]]:
    """Returns the pairs; fewer than asked for if the time is over."""
    pairs: list[dict[str, dict[str, Any]]] = []
    environment = dict(os.environ)
    if arguments.wheel:
        zipfile.ZipFile(arguments.wheel).extractall(folder / "package")
        environment["PYTHONPATH"] = os.pathsep.join([str(folder / "package"), *filter(None, [environment.get("PYTHONPATH")])])
    signal.alarm(LIMIT_SECONDS)
    try:
        path = write_model(folder / "model.safetensors", int(arguments.gib * (1 << 30)), TENSORS)
        expected = run("plain", path, environment)["digest"]
        evict(path)
        if reason := not_cold(path):
            print(f"note: the loads may not be cold: {reason}")
        for number in range(arguments.pairs):
            order = list(LOADERS) if number % 2 == 0 else list(reversed(LOADERS))
            pair = {loader: run(loader, path, environment) for loader in order}
            for loader, sample in pair.items():
                if sample["digest"] != expected:
                    sys.exit(f"error: the bytes that {loader} loaded are not those of the file")
            pairs.append(pair)
    except LimitReached:
        reached = f"the limit of {LIMIT_SECONDS} s ended it after {len(pairs)} of {arguments.pairs} pairs"
        print(f"{reached}; use a smaller --gib", file=sys.stderr)
    finally:
        signal.alarm(0)
    return pairs


def spread(values: list[float], pattern: str) -> str:
    return f"{min(values):{pattern}} to {max(values):{pattern}}"


def report(pairs: list[dict[str, dict[str, Any]]]) -> None:
    device = pairs[0]["forebay"]["device"]
    rows = []
    print("| loader | ms | least to most | processor ms | GB/s |\n|---|---|---|---|---|")
    for loader in LOADERS:
        samples = [pair[loader] for pair in pairs]
        times = [sample["seconds"] * 1e3 for sample in samples]
        middle = statistics.median(times)
        processor = statistics.median(sample["processor_seconds"] for sample in samples) * 1e3
        rate = samples[0]["bytes"] / 1e6 / middle
        print(f"| {loader} | {middle:,.0f} | {spread(times, ',.0f')} | {processor:,.0f} | {rate:,.2f} |")
        rows.append((f"{loader}, {device}", f"{middle:.0f}", "ms", spread(times, ",.0f")))
        rows.append((f"{loader}, {device}", f"{processor:.0f}", "processor ms", ""))
    ratios = [pair["safetensors"]["seconds"] / pair["forebay"]["seconds"] for pair in pairs]
    ratio, version = statistics.median(ratios), importlib.metadata.version("safetensors")
    rows.append((f"forebay, {device}", f"{ratio:.2f}", "times as fast as safetensors", spread(ratios, ".2f")))
    print(f"Forebay is {ratio:.2f} times as fast as safetensors {version} (pairs: {spread(ratios, '.2f')}) on {device}.")
    print("All bytes are those of the file.")
    # `scripts/bench --record` collects them.
    if path := os.environ.get("FOREBAY_BENCH_ROWS"):
        with open(path, "a") as file:
            file.writelines("\t".join(("python-gpu", *row)) + "\n" for row in rows)


def limit_reached(*_: object) -> None:
    raise LimitReached


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="length of the file")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--dir", default=".", help="the folder for the file, on the disk to measure")
    parser.add_argument("--wheel", help="a wheel of Forebay, which is not installed; without it the installed package is used")
    parser.add_argument("--missing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        print(json.dumps(load(*arguments.load)))
        return
    reason = missing()
    if reason or arguments.missing:
        print(reason, end="\n" if reason else "")
        return
    if arguments.pairs < 1 or arguments.gib < 0.01:
        parser.error("at least one pair, and a file of 0.01 GiB")
    if shutil.disk_usage(arguments.dir).free < arguments.gib * 1.05 * (1 << 30):
        parser.error(f"{arguments.dir} has no room for {arguments.gib:g} GiB; use another --dir, or a smaller --gib")
    signal.signal(signal.SIGALRM, limit_reached)
    # The folder goes in these cases too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="forebay-gpu.", dir=arguments.dir) as folder:
        pairs = measure(arguments, pathlib.Path(folder).resolve())
    if pairs:
        report(pairs)
    if len(pairs) < arguments.pairs:
        sys.exit(1)


if __name__ == "__main__":
    main()
