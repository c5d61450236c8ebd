"""The package's types, as the type checkers of users see them.

Regression: numpy's stubs call an array a buffer from Python 3.12 on only, so that `file.read_into(0, array)` was an error before."""

import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

pytest.importorskip("numpy")
HERE = pathlib.Path(__file__).parent
WRONG = HERE / "wrong_program.py"
VERSIONS = ["3.10", "3.11", "3.12", "3.13"]


def program_of(*names):
    """Returns the first of these programs that is in the environment in which the tests run."""
    for name in names:
        if program := shutil.which(name, path=sysconfig.get_path("scripts")):
            return program
    pytest.skip(f"{names[0]} is not installed")


def mypy(version, path, tmp_path):
    cache = tmp_path.parent / f"mypy-{version}"
    command = [program_of("mypy"), "--strict", "--python-version", version, "--cache-dir", str(cache), "--config-file=", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if re.search(r"^\S*/numpy/\S+: error", done.stdout, re.M):
        pytest.skip(f"the stubs of this numpy are not for Python {version}: {done.stdout[:300]}")
    return done


def pyright(version, path, tmp_path):
    # Its fork has the program, and a Node for it, in its package.
    program = program_of("basedpyright", "pyright")
    command = [program, "--level", "error", "--pythonversion", version, "--pythonpath", sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not re.search(r"\d+ errors?", done.stdout):
        # The package of PyPI fetches the program, and a Node for it, when it first runs.
        pytest.skip(f"pyright does not start here: {(done.stderr or done.stdout)[-300:]}")
    return done


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_program_of_a_user_is_right(checker, version, tmp_path):
    done = checker(version, HERE / "typed_program.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_mistakes_are_seen(checker, tmp_path):
    done = checker(VERSIONS[-1], WRONG, tmp_path)
    expected = {number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")}
    found = {int(number) for number in re.findall(rf"{WRONG.name}:(\d+):.*error", done.stdout)}
    assert found == expected, done.stdout + done.stderr
