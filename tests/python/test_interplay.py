# SPDX-License-Identifier: Apache-2.0
"""What else Python programs do with autograd, beside and inside a budget."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import fleet
from blocks import Blocks, blocks, check, data
from training import assert_equal, train


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = x.exp().sqrt()
        ctx.save_for_backward(y, w)
        ctx.shape = x.shape
        return y * w

    @staticmethod
    def backward(ctx, g):
        y, w = ctx.saved_tensors
        return g * w * y / 2, (g * y).sum()


def test_autograd_functions_in_python():
    class Net(Blocks):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            for block in self.blocks:
                x = x + block(Scale.apply(x.tanh(), self.w))
            return x.square().mean()

    x = data(256, 64)
    check(lambda: (Net(), lambda model: model(x)))


@torch.library.custom_op("fleet_tests::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone() ** 3


def cube_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def cube_backward(ctx, g):
    return g * 3 * ctx.saved_tensors[0] ** 2


cube.register_autograd(cube_backward, setup_context=cube_setup)


def test_custom_ops_in_python():
    class Net(Blocks):
        def forward(self, x):
            for block in self.blocks:
                x = x + block(cube(x.tanh()))
            return x.square().mean()

    x = data(256, 64)
    check(lambda: (Net(), lambda model: model(x)))


def test_backward_from_another_thread():
    def other_thread(budget, loss):
        with budget.forward():
            value = loss()
        thread = threading.Thread(target=value.backward)
        thread.start()
        thread.join()
        return value

    plain = train(blocks())
    ours = train(blocks(), 0.5, plain.activations, step=other_thread)
    assert ours.plan is not None
    assert_equal(ours, plain)


def test_other_threads_go_on_while_a_step_runs():
    model = Blocks(depth=4)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    budget = fleet.MemoryBudget("1GiB")
    before = counted[0]
    budget.step(lambda: model(data(2048, 64)))
    during = counted[0] - before
    done.set()
    thread.join()
    assert during > 0


def test_anomaly_mode():
    plain = train(blocks())

    def with_anomaly(budget, loss):
        with torch.autograd.detect_anomaly(check_nan=True):
            return budget.step(loss)

    with pytest.warns(UserWarning, match="Anomaly"):
        ours = train(blocks(), 0.5, plain.activations, step=with_anomaly)
    assert_equal(ours, plain)


def test_anomaly_mode_names_the_forward_of_a_nan():
    x = torch.zeros(4, requires_grad=True)
    budget = fleet.MemoryBudget("1GiB")
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="returned nan"):
        with torch.autograd.detect_anomaly():
            budget.step(lambda: (x.sqrt() * 0).sum())


def test_dispatch_modes_see_each_op_once():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Ops(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    model = Blocks(depth=2)
    x = data(16, 64)

    def run(step):
        torch.manual_seed(1)
        model.zero_grad()
        with Ops() as mode:
            step()
        return mode.names, [p.grad.clone() for p in model.parameters()]

    budget = fleet.MemoryBudget("1GiB")
    ours, gradients = run(lambda: budget.step(lambda: model(x)))
    names, expected = run(lambda: model(x).backward())
    assert [n for n in ours if "detach" not in n and "ones_like" not in n] == [n for n in names if "detach" not in n and "ones_like" not in n]
    for a, b in zip(gradients, expected):
        assert torch.equal(a, b)


def test_a_dispatch_mode_around_backward_does_not_see_replays():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = data(64, 64).requires_grad_()
    loss = fleet.recompute(lambda: x.sin().exp().sum())
    with Names() as mode:
        loss.backward()
    assert "sin.default" not in mode.names and "exp.default" not in mode.names
    assert torch.equal(x.grad, torch.autograd.grad(x.sin().exp().sum(), x)[0])


def test_func_transforms():
    from torch.func import grad, vmap

    w = data(64).requires_grad_()
    x = data(16, 64)

    def loss(w):
        inner = vmap(grad(lambda v: (v.sin() * v).sum()))(x)
        return ((inner * w).exp().tanh()).square().mean()

    expected = torch.autograd.grad(loss(w), w)[0]
    budget = fleet.MemoryBudget("1GiB")
    budget.step(lambda: loss(w))
    assert torch.equal(w.grad, expected)

    model = Blocks(depth=1)
    model.eval()
    names = dict(model.named_parameters())

    def functional(p):
        return torch.func.functional_call(model, p, (x,))

    expected = grad(functional)({k: v.detach() for k, v in names.items()})
    value = {}
    budget.step(lambda: value.update(grad(functional)(names)) or sum(v.square().sum() for v in value.values()))
    for k in names:
        assert torch.equal(value[k], expected[k])


def test_gradient_penalty_with_a_graph_of_a_gradient():
    model = Blocks(depth=2)
    x = data(32, 64)

    def loss():
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(y), y, create_graph=True)
        return (g.norm() - 1).square()

    def gradients(run):
        torch.manual_seed(4)
        model.zero_grad()
        run()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    budget = fleet.MemoryBudget("1GiB")
    ours = gradients(lambda: budget.step(loss))
    for a, b in zip(ours, gradients(lambda: loss().backward())):
        assert torch.equal(a, b)


def test_autocast():
    x = data(256, 64)

    def loss(model):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    check(lambda: (Blocks(), loss))


def test_saved_attributes_of_a_graph_can_be_looked_at():
    x = data(64, 64).requires_grad_()
    y = fleet.recompute(lambda: (x * 3).sin())
    assert torch.equal(y.grad_fn._saved_self, x * 3)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader(context):
    # In a program of its own: pytest may have threads that a fork does not like.
    code = f"""
import torch, fleet
from torch import nn
if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    budget = fleet.MemoryBudget("64MiB")
    budget.step(lambda: net(torch.ones(4, 16)).sum())
    set_ = torch.utils.data.TensorDataset(torch.arange(32.).reshape(32, 1).expand(32, 16).contiguous())
    loader = torch.utils.data.DataLoader(set_, 4, num_workers=2, multiprocessing_context="{context}")
    total = 0
    for (x,) in loader:
        budget.step(lambda: net(x).sum())
        total += x[:, 0].sum().item()
    assert total == 496, total
    print("good")
"""
    program = tmp_program(code)
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip().endswith("good"), result.stderr


def tmp_program(code):
    import tempfile

    file = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)
    file.write(code)
    file.close()
    return file.name


def test_compiled_modules_are_kept_as_one_op():
    if not compiler_works():
        pytest.skip("torch.compile has no working compiler here")
    x = data(128, 64)

    def make():
        torch._dynamo.reset()
        front = torch.compile(Blocks(depth=1))
        tail = Blocks(depth=4)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.front, self.tail = front, tail

            def forward(self, y):
                return self.tail(y * self.front(y))

        return Net(), lambda model: model(x)

    plain = train(make)
    ours = train(make, 0.6, plain.activations)
    assert_equal(ours, plain)


def compiler_works():
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
        return True
    except Exception:
        return False


def test_nothing_stays_installed_after_the_last_budget():
    code = """
import gc, torch, fleet
from fleet._C import testing
before = testing.process_state()
net = torch.nn.Linear(64, 64)
budgets = [fleet.MemoryBudget("1GiB"), fleet.MemoryBudget("2GiB")]
for budget in budgets:
    loss = budget.step(lambda: net(torch.ones(4096, 64)).sum())
    with budget.forward():
        other = net(torch.ones(4, 64)).sum()
    other.backward()
assert testing.process_state()["allocator"] != before["allocator"]
assert testing.process_state()["engine"] == before["engine"]
budgets.clear()
del budget, loss, other
net.zero_grad()
gc.collect()
assert testing.counted() == 0, testing.counted()
assert testing.process_state() == before
net(torch.ones(4, 64)).sum().backward()
print("good")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip().endswith("good"), result.stderr


def test_the_allocator_stays_while_blocks_of_it_live():
    code = """
import gc, torch, fleet
from fleet._C import testing
before = testing.process_state()
net = torch.nn.Linear(64, 64)
budget = fleet.MemoryBudget("1GiB")
budget.step(lambda: net(torch.ones(4, 64)).sum())
del budget
gc.collect()
assert testing.process_state()["engine"] == before["engine"]
assert testing.process_state()["allocator"] != before["allocator"]  # gradients are its blocks
net.zero_grad()
assert testing.process_state() == before
print("good")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip().endswith("good"), result.stderr
