# SPDX-License-Identifier: Apache-2.0
"""Where Fleet's lines go: the process's standard output, or what sys.stdout is instead."""

import contextlib
import io
import os
import subprocess
import sys
import threading

import pytest
import torch
from programs import environment

import fleet

MODEL = "model = torch.nn.Linear(4, 4)\n"
MAKE = "optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model))\n"
STEP = "optimizer.minimize(torch.ones(2, 4), lambda x: print('closure') or model(x).sum())\n"


def train():
    model = torch.nn.Linear(4, 4)
    optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model))
    fleet.log_step(optimizer.minimize(torch.ones(2, 4), lambda x: print("closure") or model(x).sum()))


def output_of(code, **options):
    result = subprocess.run([sys.executable, "-u", "-c", "import sys, io, contextlib, torch, fleet\n" + code], capture_output=True, text=True, env=environment(), timeout=120, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_lines_are_in_a_redirected_stdout_in_order():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        train()
        print("after")
    lines = text.getvalue().splitlines()
    assert any("Strategy Overview" in line for line in lines)
    assert lines.index("closure") < next(i for i, line in enumerate(lines) if "cost = " in line) < lines.index("after")


def test_pytest_captures_lines(capsys):
    train()
    assert "closure" in capsys.readouterr().out.split("cost = ")[0]


def test_nothing_of_them_is_on_the_descriptor():
    code = MODEL + "text = io.StringIO()\nwith contextlib.redirect_stdout(text):\n    " + MAKE + "    " + STEP
    output = output_of(code + "assert 'closure' in text.getvalue() and len(text.getvalue().splitlines()) > 1\nprint('own')\n")
    assert output == "own\n"


def test_without_redirection_they_are_on_the_descriptor_at_once():
    code = MODEL + "import os\nr, w = os.pipe()\nown = os.dup(1)\nos.dup2(w, 1)\n" + MAKE + "os.dup2(own, 1)\nos.close(w)\ntext = os.read(r, 1 << 16).decode()\nassert 'Strategy Overview' in text, text\n"
    output_of(code)


def test_a_stream_in_another_encoding_is_the_processs_own():
    code = "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', write_through=True)\n" + MODEL + MAKE
    assert "Strategy Overview" in output_of(code)


def test_a_stream_that_is_closed_does_not_end_a_training():
    code = MODEL + "closed = io.StringIO()\nclosed.close()\nwith contextlib.redirect_stdout(closed):\n    " + MAKE
    assert "Strategy Overview" in output_of(code)


def test_lines_are_not_lost_at_the_end():
    code = """
class Tee(io.TextIOBase):
    def write(self, text):
        sys.__stdout__.write("tee " + text)
        return len(text)
sys.stdout = Tee()
"""
    assert "tee " in output_of(code + MODEL + MAKE)


def test_threads_with_streams_of_their_own_do_not_deadlock():
    """Threads print while they hold the GIL, and while they do not."""
    text = io.StringIO()

    def work():
        for _ in range(3):
            train()

    with contextlib.redirect_stdout(text):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=100)
        assert not any(thread.is_alive() for thread in threads)
    assert text.getvalue().count("closure") == 9


def test_warnings_are_in_a_redirected_stderr():
    code = """
text = io.StringIO()
with contextlib.redirect_stderr(text):
    fleet._C.testing.warn("watch out")
assert text.getvalue() == "[test] warning: watch out\\n", text.getvalue()
"""
    output_of(code)


def test_lines_of_threads_without_python_come_with_the_next_call():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        fleet._C.testing.print_from_a_thread("from below")
        print("after")
    assert text.getvalue() == "[test] from below\nafter\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_prints():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        train()
        pid = os.fork()
        if pid == 0:
            fleet._C.testing.print_from_a_thread("child")
            os._exit(0 if "child" in text.getvalue() else 1)
        assert os.waitpid(pid, 0)[1] == 0
