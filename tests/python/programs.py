# SPDX-License-Identifier: Apache-2.0
"""Runs programs in processes of their own, on one rank and on several."""

import os
import subprocess
import sys

import pytest

import fleet

PACKAGE = os.path.dirname(fleet.__file__)
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def environment():
    return {
        **os.environ,
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.path.dirname(PACKAGE),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }


def find_program(name):
    """In the package, or beside it in a build folder."""
    for folder in (os.path.join(PACKAGE, "bin"), os.path.join(PACKAGE, "..", "..", "bin")):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    pytest.skip(f"{name} is not built")


def run(command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, env=environment(), **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_ranks(tmp_path, program, *arguments, ranks=2):
    """The output of rank 0."""
    log = tmp_path / "log"
    run([find_program("fleetrun"), "--nproc_per_node", ranks, "--log_dir", log, program, *arguments], cwd=tmp_path)
    return (log / "workerlog.0").read_text()
