"""The least that a wheel must do, with nothing else installed: run by scripts/checks/python with each interpreter."""

import asyncio
import os
import sys
import tempfile

import forebay

assert os.path.dirname(forebay.__file__).startswith(sys.prefix), forebay.__file__
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "file")
    with forebay.open(path, write=True, create=True) as file:
        assert file.write(0, b"0123456789" * 1000) == 10_000
        assert file.append(b"end") == 10_000
        assert file.read(9_998) == b"89end"
        out = bytearray(6)
        assert file.read_many([(3, 3), (100, 3)], out) is out and out == b"345012"
        assert b"".join(file.scan()) == b"0123456789" * 1000 + b"end"

        async def twins():
            assert await file.aread(5, 3) == b"567"
            return [bytes(view) for view in await file.aread_many([(1, 1), (2, 2)])]

        assert asyncio.run(twins()) == [b"1", b"23"]
        child = os.fork()
        if child == 0:
            os._exit(0 if file.read(1, 2) == b"12" else 1)
        assert os.waitpid(child, 0)[1] == 0
    try:
        forebay.open(path + ".none")
    except FileNotFoundError as error:
        assert error.filename == path + ".none"
    else:
        raise SystemExit("a missing file was opened")
print(f"Python {sys.version.split()[0]}: forebay {forebay.__version__}, {forebay.doctor()['driver']}")
