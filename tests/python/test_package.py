# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it costs, help, stubs, Ctrl-C, and the wheel."""

import ast
import glob
import inspect
import os
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
from programs import PACKAGE, ROOT, environment, run

import fleet


def test_importing_costs_less_than_half_a_second_beyond_torch():
    code = "import time, torch; from torch.utils import _pytree; t = time.process_time(); import fleet; print(time.process_time() - t)"
    assert min(float(run([sys.executable, "-c", code])) for _ in range(3)) < 0.5


def test_another_torch_is_refused_with_what_to_install():
    code = "import torch; torch.__version__ = '2.9.1'\ntry:\n  import fleet\nexcept ImportError as e:\n  print(e)"
    assert "fleet was built for PyTorch 2.15, and PyTorch 2.9.1 is installed: pip install 'torch==2.15.*'" in run([sys.executable, "-c", code])


def public_names(owner):
    return {name for name in dir(owner) if not name.startswith("_")}


@pytest.mark.parametrize("module", [fleet, fleet.optim], ids=["fleet", "fleet.optim"])
def test_every_public_name_has_a_text(module):
    bare = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        if not (value.__doc__ or "").strip():
            bare.append(name)
        if inspect.isclass(value) and not issubclass(value, (BaseException, fleet.optim._Optimizer)) and value is not fleet.DistributedStrategy:
            bare += [f"{name}.{member}" for member in public_names(value) if not (getattr(value, member).__doc__ or "").strip()]
    assert not bare


def test_help_of_the_budget_suffices():
    text = run([sys.executable, "-c", "import fleet; help(fleet.MemoryBudget)"])
    for words in ("budget.step(lambda: model(**batch).loss)", '"50% of plain"', "with budget.forward():", "budget.attach(model)", "offload"):
        assert words in text


def stub_names():
    """Names of the stubs, with the members of their classes."""
    with open(os.path.join(PACKAGE, "__init__.pyi")) as file:
        tree = ast.parse(file.read())
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
            members += [m.target.id for m in node.body if isinstance(m, ast.AnnAssign)]
            names[node.name] = set(members)
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = None
        elif isinstance(node, ast.ImportFrom) and node.module is None:
            names.update({alias.name: None for alias in node.names})
    return names


def test_stubs_have_every_name_and_no_other():
    stubs = stub_names()
    assert set(fleet.__all__) - set(stubs) == set()
    for name, members in stubs.items():
        value = fleet.DistributedStrategy() if name == "DistributedStrategy" else getattr(fleet, name, None)
        if members is None or value is None or isinstance(value, type) and issubclass(value, BaseException):
            continue
        assert {m for m in members if not m.startswith("_")} == public_names(value) | ({"load"} if name == "DistributedStrategy" else set()), name


def test_stubs_of_the_optimizers_are_their_signatures():
    with open(os.path.join(PACKAGE, "optim.pyi")) as file:
        classes = {node.name: node for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)}
    assert set(fleet.optim.__all__) == {name for name in classes if not name.startswith("_")}
    for name in fleet.optim.__all__:
        (stub,) = [member.args for member in classes[name].body if isinstance(member, ast.FunctionDef)]
        defaults = {a.arg: d for a, d in zip(reversed(stub.args), reversed(stub.defaults))}
        defaults.update({a.arg: d for a, d in zip(stub.kwonlyargs, stub.kw_defaults)})
        parameters = inspect.signature(getattr(fleet.optim, name)).parameters
        assert list(parameters) == [a.arg for a in [*stub.args, *stub.kwonlyargs]][1:]
        for parameter in parameters.values():
            if parameter.default is not parameter.empty:
                assert ast.literal_eval(defaults[parameter.name]) == parameter.default, (name, parameter)


def test_an_uncaught_usage_error_is_exit_code_2():
    result = subprocess.run([sys.executable, "-c", "import fleet\nprint('before')\nfleet.MemoryBudget('much')"], capture_output=True, text=True, env=environment())
    assert (result.returncode, result.stdout) == (2, "before\n")
    assert result.stderr.startswith("error: [memory] 'much' is no amount of memory\n  fix: ")
    other = subprocess.run([sys.executable, "-c", "import fleet\nraise fleet.Error('x')"], capture_output=True, text=True, env=environment())
    assert other.returncode == 1 and "Traceback" in other.stderr


LONG = """
import torch, fleet
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
{setup}
{step}
print("ready", flush=True)
while True:
    {step}
"""
STEPS = {
    "budget": ('budget = fleet.MemoryBudget("1GiB")', "budget.step(lambda: net(torch.ones(64, 256)).sum())"),
    "minimize": ("optimizer = fleet.distributed_optimizer(fleet.optim.SGD(net, lr=0.0))", "optimizer.minimize(torch.ones(64, 256), lambda x: net(x).mean())"),
}


@pytest.mark.parametrize("name", STEPS)
def test_control_c_ends_a_run(name):
    setup, step = STEPS[name]
    # A shell starts what it runs in the background with SIGINT ignored, and programs inherit that.
    hear = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = subprocess.Popen([sys.executable, "-u", "-c", LONG.format(setup=setup, step=step)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), preexec_fn=hear)
    try:
        while "ready" not in (line := program.stdout.readline()):
            assert line, program.stderr.read()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode != 0
    assert "KeyboardInterrupt" in errors or "stop" in errors.lower(), errors


def test_a_wheel_imports_beside_torch_alone(request, tmp_path):
    if not request.config.getoption("--wheel"):
        pytest.skip("builds the library once more: --wheel")
    wheels = tmp_path / "wheels"
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT])
    (wheel,) = glob.glob(str(wheels / "*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert not [name for name in names if "libtorch" in name or "libc10" in name or "libgomp" in name]
    assert {"fleet/__init__.pyi", "fleet/py.typed", "fleet/bin/fleetrun"} <= set(names)
    # A folder with torch and what it needs, and the wheel.
    import torch

    site = os.path.dirname(os.path.dirname(torch.__file__))
    for name in os.listdir(site):
        if not os.path.exists(tmp_path / "site" / name) and not name.startswith("fleet"):
            os.symlink(os.path.join(site, name), tmp_path / "site" / name)
    code = "import fleet, torch; n = torch.nn.Linear(4, 4); fleet.MemoryBudget('1GiB').step(lambda: n(torch.ones(2, 4)).sum()); print(fleet.__file__, n.weight.grad.sum().item())"
    result = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert str(tmp_path) in result.stdout and result.stdout.split()[-1] == "32.0"
    shutil.rmtree(tmp_path / "site")


@pytest.mark.parametrize("is_beside", [False, True])
def test_fleetrun_finds_a_torch_that_lies_elsewhere(tmp_path, monkeypatch, is_beside):
    """In a virtual environment over another one, say, the launcher's own path does not lead to it."""
    import torch
    from fleet import _fleetrun

    started = {}
    if is_beside:
        (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "fleet").mkdir()
    monkeypatch.setattr(_fleetrun, "__file__", str(tmp_path / "fleet" / "_fleetrun.py"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(os, "execv", lambda program, words: started.update(program=program, path=os.environ["LD_LIBRARY_PATH"]))
    _fleetrun.main()
    assert started["program"] == str(tmp_path / "fleet" / "bin" / "fleetrun")
    own = os.path.join(os.path.dirname(torch.__file__), "lib")
    assert started["path"] == ("/before" if is_beside else own + os.pathsep + "/before")
