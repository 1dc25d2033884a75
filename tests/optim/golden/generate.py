#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes optimizers.json: what other libraries' optimizers do, step by step, for Fleet's to be held against.

The committed file was made with Python 3.11, numpy 2.4.6, torch 2.15.0, paddlepaddle 3.3.1, timm 1.0.30 and
torch_optimizer 0.3.0, all on the CPU. To write it anew, in an environment of its own:

    pip install numpy==2.4.6 torch==2.15.0 paddlepaddle==3.3.1 pyyaml huggingface_hub
    pip install --no-deps timm==1.0.30 torchvision==0.29.2 torch_optimizer==0.3.0 pytorch_ranger==0.1.1
    python tests/optim/golden/generate.py            # or --check: compares with the committed file

It needs no network and no random state: numbers come from a counter. Nothing is written unless every case agrees with
`formula()` below, in double precision: that function says what the options of a case mean, and the agreement is the
proof that they describe the library that made the numbers. A second check turns each switch over and wants to see the
agreement break in some case, so that a test against this file cannot pass with a switch ignored.

A few variants have no implementation that runs on a CPU. Their numbers are the formula's own and their source says so.

The file: {"about": text, "cases": [case...]}, a case being
    name, source      what it is called, which library and version made it
    optimizer         sgd, momentum, adam, adamw, lars or lamb
    options           numbers, flags and words; see `formula()`. No max_ratio: unbounded. No max_grad_norm: no clipping.
    lr                one per step
    tensors           [{name, shape, initial, decay}]; decay false: left out of weight decay
    gradients, values [step][tensor][element], row-major; values are those after the step
Every number of tensors, gradients and values is a float32 in its shortest exact form.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from counter_numbers import counter_numbers

FILE = pathlib.Path(__file__).parent / "optimizers.json"
STEPS = 6
TENSORS = [  # name, shape; the last one starts at zero
    ("fc.weight", (3, 4)),
    ("conv.weight", (2, 2, 2, 2)),
    ("fc.bias", (5,)),
    ("head.weight", (2, 3)),
]
FORMULA = "formula in double precision, no implementation runs on a CPU"


def float32_numbers(stream, shape):
    return counter_numbers(stream, int(np.prod(shape))).astype(np.float32).reshape(shape)


def initial_values():
    values = [float32_numbers(i, shape) for i, (_, shape) in enumerate(TENSORS)]
    values[3][:] = 0
    return values


def make_gradients(zero_at):
    """`zero_at`: (step, tensor) pairs whose gradient is all zero."""
    out = []
    for step in range(STEPS):
        row = [float32_numbers(100 + 10 * step + i, s) for i, (_, s) in enumerate(TENSORS)]
        for i in range(len(TENSORS)):
            if (step, i) in zero_at:
                row[i] = np.zeros_like(row[i])
        out.append(row)
    return out


class Case:
    def __init__(self, name, optimizer, source, run, options, lr, excluded=(), zero_at=((3, 1),)):
        self.name, self.optimizer, self.source, self.run = name, optimizer, source, run
        self.options = options
        self.lr = lr
        self.decay = [not any(word in tensor for word in excluded) for tensor, _ in TENSORS]
        self.gradients = make_gradients(set(zero_at))
        self.initial = initial_values()

    def to_json(self, values):
        flat = lambda rows: [[numbers(t) for t in row] for row in rows]
        tensors = [
            {"name": name, "shape": list(shape), "initial": numbers(self.initial[i]), "decay": self.decay[i]}
            for i, (name, shape) in enumerate(TENSORS)
        ]
        return {
            "name": self.name,
            "source": self.source,
            "optimizer": self.optimizer,
            "options": self.options,
            "lr": self.lr,
            "tensors": tensors,
            "gradients": flat(self.gradients),
            "values": flat(values),
        }


class Number(float):
    """A float32 that json writes with as few digits as bring it back."""

    def __repr__(self):
        text = np.format_float_positional(np.float32(self), unique=True, trim="-")
        if len(text) > 14:
            text = np.format_float_scientific(np.float32(self), unique=True, trim="-")
        return "0" if text in ("-0", "0") else text


def numbers(array):
    return [Number(x) for x in np.asarray(array, dtype=np.float32).ravel()]


# ---------------------------------------------------------------------------------------------------------------------
# What the options mean


def norm(x):
    return float(np.sqrt(np.sum(np.square(x))))


def formula(case, options):
    """The values after each step, in double precision. The definition of every option that a case may have."""
    o = options
    w = [x.astype(np.float64) for x in case.initial]
    first = [np.zeros_like(x) for x in w]
    second = [np.zeros_like(x) for x in w]
    out = []
    for step, lr in enumerate(case.lr):
        g = [x.astype(np.float64) for x in case.gradients[step]]
        if "max_grad_norm" in o:  # all tensors together
            g = [x / max(1.0, norm(np.concatenate([y.ravel() for y in g])) / o["max_grad_norm"]) for x in g]
        for i in range(len(w)):
            wd = o["weight_decay"] if case.decay[i] else 0.0
            update = globals()["formula_" + case.optimizer]
            w[i], first[i], second[i] = update(o, step + 1, lr, wd, w[i], g[i], first[i], second[i])
        out.append([x.copy() for x in w])
    return out


def formula_sgd(o, t, lr, wd, w, g, m, v):
    return w - lr * (g + wd * w), m, v


def formula_momentum(o, t, lr, wd, w, g, m, v):
    d = g + wd * w
    m = o["momentum"] * m + d
    return w - lr * (d + o["momentum"] * m if o["use_nesterov"] else m), m, v


def moments(o, g, m, v):
    return o["beta1"] * m + (1 - o["beta1"]) * g, o["beta2"] * v + (1 - o["beta2"]) * g * g


def corrected(o, t, m, v):
    return m / (1 - o["beta1"] ** t), v / (1 - o["beta2"] ** t)


def formula_adam(o, t, lr, wd, w, g, m, v):
    m, v = moments(o, g + wd * w, m, v)
    a, b = corrected(o, t, m, v)
    return w - lr * a / (np.sqrt(b) + o["epsilon"]), m, v


def formula_adamw(o, t, lr, wd, w, g, m, v):
    m, v = moments(o, g, m, v)
    a, b = corrected(o, t, m, v)
    return w - lr * wd * w - lr * a / (np.sqrt(b) + o["epsilon"]), m, v


def formula_lars(o, t, lr, wd, w, g, m, v):
    ratio = 1.0
    if wd > 0 or o["adapt_without_decay"]:
        if norm(w) > 0 and norm(g) > 0:
            ratio = o["lars_coeff"] * norm(w) / (norm(g) + wd * norm(w) + o["epsilon"])
            if o["trust_clip"]:  # at a zero norm timm gives min(1 / lr, 1), Apex 1: the same for rates up to 1
                ratio = min(ratio / lr, 1.0)
        elif not o["decay_at_zero_norm"]:
            wd = 0.0
    d = ratio * (g + wd * w)
    inside, outside = (lr, 1.0) if o["lr_in_velocity"] else (1.0, lr)
    m = o["momentum"] * m + inside * d
    return w - outside * (inside * d + o["momentum"] * m if o["use_nesterov"] else m), m, v


def formula_lamb(o, t, lr, wd, w, g, m, v):
    m, v = moments(o, g, m, v)
    a, b = corrected(o, t, m, v) if o["bias_correction"] == "moments" else (m, v)
    u = a / (np.sqrt(b) + o["epsilon"]) + wd * w
    if o["bias_correction"] == "step":
        lr = lr * np.sqrt(1 - o["beta2"] ** t) / (1 - o["beta1"] ** t)
    ratio = 1.0
    if (wd > 0 or o["adapt_without_decay"]) and norm(w) > 0 and norm(u) > 0:
        ratio = min(max(norm(w) / norm(u), o["min_ratio"]), o.get("max_ratio", np.inf))
    return w - lr * ratio * u, m, v


# ---------------------------------------------------------------------------------------------------------------------
# What the libraries do


def torch_runner(make, clip=None):
    """`make(groups, lr)` makes an optimizer from two groups: tensors with decay, tensors without."""

    def run(case):
        import torch

        params = [torch.tensor(x, requires_grad=True) for x in case.initial]
        groups = [{"params": [p for p, d in zip(params, case.decay) if d]}]
        left_out = [p for p, d in zip(params, case.decay) if not d]
        if left_out:
            groups.append({"params": left_out, "weight_decay": 0.0})
        optimizer = make(groups, case.lr[0])
        out = []
        for step, lr in enumerate(case.lr):
            for group in optimizer.param_groups:
                group["lr"] = lr
            for p, g in zip(params, case.gradients[step]):
                p.grad = torch.tensor(g)  # a copy: some optimizers write into it
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(params, clip)
            optimizer.step()
            out.append([p.detach().numpy().copy() for p in params])
        return out

    return run


def paddle_runner(make):
    """`make(params, lr, excluded)`: `excluded` holds the names of the tensors that are left out of decay."""

    def run(case):
        import paddle

        paddle.set_device("cpu")
        params = []
        for (name, shape), value in zip(TENSORS, case.initial):
            # Paddle's names are global: a second parameter of a name would share its optimizer state.
            p = paddle.create_parameter(list(shape), "float32", name=case.name + "/" + name)
            p.set_value(value)
            params.append(p)
        excluded = [p.name for p, d in zip(params, case.decay) if not d]
        optimizer = make(params, case.lr[0], excluded)
        out = []
        for step, lr in enumerate(case.lr):
            optimizer.set_lr(lr)
            loss = sum((p * paddle.to_tensor(g)).sum() for p, g in zip(params, case.gradients[step]))
            loss.backward()
            for p, g in zip(params, case.gradients[step]):
                assert np.array_equal(p.grad.numpy(), g)
            optimizer.step()
            optimizer.clear_grad()
            out.append([p.numpy().copy() for p in params])
        return out

    return run


def run_formula(case):
    return formula(case, case.options)


def cases():
    import paddle
    import timm
    import timm.optim
    import torch
    import torch_optimizer

    torch_source = "torch " + torch.__version__.split("+")[0]
    paddle_source = "paddle " + paddle.__version__
    timm_source = "timm " + timm.__version__
    torch_optimizer_source = "torch_optimizer " + torch_optimizer.__version__
    out = []

    # Rates rise and fall, because where the rate enters the velocity shows only when it changes.
    warm = [0.125, 0.25, 0.5, 0.5, 0.25, 0.0625]
    small = [0.01, 0.02, 0.05, 0.05, 0.02, 0.005]
    bias = ("bias",)

    def sgd(name, momentum=0.0, wd=0.0, nesterov=False, clip=None):
        options = {"weight_decay": wd}
        if momentum:
            options.update(momentum=momentum, use_nesterov=nesterov)
        if clip is not None:
            options["max_grad_norm"] = clip
        make = lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=wd, nesterov=nesterov)
        kind = "momentum" if momentum else "sgd"
        out.append(Case(name, kind, torch_source, torch_runner(make, clip), options, warm))

    sgd("sgd")
    sgd("sgd_decay", wd=0.1)
    sgd("momentum", 0.9)
    sgd("momentum_decay", 0.9, wd=0.1)
    sgd("momentum_nesterov", 0.9, wd=0.1, nesterov=True)
    sgd("momentum_clipped", 0.9, wd=0.1, clip=1.5)

    def adam(name, kind, wd, excluded=(), clip=None, beta2=0.99):
        options = {"beta1": 0.8, "beta2": beta2, "epsilon": 1e-8, "weight_decay": wd}
        if clip is not None:
            options["max_grad_norm"] = clip
        theirs = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        make = lambda groups, lr: theirs(groups, lr=lr, betas=(0.8, beta2), eps=1e-8, weight_decay=wd)
        out.append(Case(name, kind, torch_source, torch_runner(make, clip), options, small, excluded))

    adam("adam", "adam", 0.0, beta2=0.999)
    adam("adam_decay", "adam", 0.1)
    adam("adamw", "adamw", 0.3)
    adam("adamw_excluded", "adamw", 0.3, bias)
    adam("adamw_clipped", "adamw", 0.3, clip=1.5)

    def lars(name, source, wd, excluded=(), coeff=0.02, epsilon=0.0, nesterov=False, zero_at=((3, 1),), **switches):
        options = {"momentum": 0.9, "use_nesterov": nesterov}
        options.update(lars_coeff=coeff, weight_decay=wd, epsilon=epsilon)
        options.update(lr_in_velocity=False, adapt_without_decay=False, decay_at_zero_norm=True, trust_clip=False)
        options.update(switches)
        if source == paddle_source:
            make = lambda params, lr, excluded: paddle.incubate.optimizer.LarsMomentumOptimizer(
                lr, 0.9, coeff, wd, params, exclude_from_weight_decay=excluded, epsilon=epsilon
            )
            run = paddle_runner(make)
        elif source == timm_source:
            make = lambda groups, lr: timm.optim.Lars(
                groups, lr=lr, momentum=0.9, weight_decay=wd, nesterov=nesterov, trust_coeff=coeff, eps=epsilon,
                trust_clip=options["trust_clip"], always_adapt=options["adapt_without_decay"]
            )
            run = torch_runner(make)
        elif source == torch_optimizer_source:
            make = lambda groups, lr: torch_optimizer.LARS(
                groups, lr=lr, momentum=0.9, weight_decay=wd, nesterov=nesterov, trust_coefficient=coeff, eps=epsilon
            )
            run = torch_runner(make)
        else:
            run = run_formula
        out.append(Case(name, "lars", source, run, options, warm, excluded, zero_at))

    head_too = ((0, 3), (3, 1))  # neither value nor gradient at first
    lars("lars_paddle", paddle_source, 0.1, lr_in_velocity=True)
    lars("lars_paddle_excluded", paddle_source, 0.1, bias, lr_in_velocity=True)
    lars("lars_paddle_no_decay", paddle_source, 0.0, lr_in_velocity=True)
    lars("lars_paddle_epsilon", paddle_source, 0.1, bias, epsilon=0.5, lr_in_velocity=True, zero_at=head_too)
    lars("lars_paddle_gpu", FORMULA, 0.1, bias, lr_in_velocity=True, adapt_without_decay=True)
    lars("lars_paddle_gpu_no_decay", FORMULA, 0.0, lr_in_velocity=True, adapt_without_decay=True)
    lars("lars_timm", timm_source, 0.1, bias, epsilon=1e-8)
    lars("lars_timm_nesterov", timm_source, 0.1, bias, epsilon=1e-8, nesterov=True)
    lars("lars_timm_always_adapt", timm_source, 0.1, bias, epsilon=1e-8, adapt_without_decay=True)
    lars("lars_timm_clip", timm_source, 0.1, bias, coeff=0.3, epsilon=1e-8, trust_clip=True)
    larc = {"coeff": 0.3, "epsilon": 1e-8, "trust_clip": True, "adapt_without_decay": True}
    lars("lars_timm_clip_always_adapt", timm_source, 0.1, bias, **larc)
    lars("lars_torch_optimizer", torch_optimizer_source, 0.1, bias, epsilon=1e-8, decay_at_zero_norm=False)
    lars("lars_apex_larc", FORMULA, 0.1, bias, **larc, decay_at_zero_norm=False)
    lars("lars_mlperf_nesterov", FORMULA, 0.1, bias, lr_in_velocity=True, nesterov=True)

    def lamb(name, source, wd=0.1, excluded=bias, zero_at=((3, 1),), **switches):
        options = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": wd}
        options.update({"bias_correction": "moments", "adapt_without_decay": False, "min_ratio": 0})
        options.update(switches)
        betas = (0.9, 0.99)
        if source == paddle_source:
            clip = options.get("max_grad_norm")
            make = lambda params, lr, excluded: paddle.optimizer.Lamb(
                lr, wd, 0.9, 0.99, 1e-6, params,
                grad_clip=None if clip is None else paddle.nn.ClipGradByGlobalNorm(clip),
                exclude_from_weight_decay_fn=lambda p: p.name in excluded, always_adapt=options["adapt_without_decay"]
            )
            run = paddle_runner(make)
        elif source == timm_source:
            make = lambda groups, lr: timm.optim.Lamb(
                groups, lr=lr, betas=betas, eps=1e-6, weight_decay=wd, max_grad_norm=options.get("max_grad_norm"),
                bias_correction=options["bias_correction"] == "moments", trust_clip="max_ratio" in options,
                always_adapt=options["adapt_without_decay"]
            )
            run = torch_runner(make)
        elif source == torch_optimizer_source:
            make = lambda groups, lr: torch_optimizer.Lamb(
                groups, lr=lr, betas=betas, eps=1e-6, weight_decay=wd, clamp_value=1e4,
                debias=options["bias_correction"] == "step"
            )
            run = torch_runner(make)
        else:
            run = run_formula
        out.append(Case(name, "lamb", source, run, options, small, excluded, zero_at))

    lamb("lamb_paddle", paddle_source, excluded=(), zero_at=head_too)
    lamb("lamb_paddle_excluded", paddle_source)
    lamb("lamb_paddle_always_adapt", paddle_source, adapt_without_decay=True)
    lamb("lamb_paddle_no_decay", paddle_source, wd=0.0, excluded=())
    lamb("lamb_paddle_clipped", paddle_source, max_grad_norm=1.5)
    lamb("lamb_timm", timm_source)
    lamb("lamb_timm_trust_clip", timm_source, max_ratio=1)
    lamb("lamb_timm_always_adapt", timm_source, adapt_without_decay=True, max_grad_norm=1)
    lamb("lamb_timm_uncorrected", timm_source, bias_correction="none", max_grad_norm=1)
    lamb("lamb_torch_optimizer", torch_optimizer_source, bias_correction="none", adapt_without_decay=True)
    lamb("lamb_torch_optimizer_debias", torch_optimizer_source, bias_correction="step", adapt_without_decay=True)
    lamb("lamb_bounded_ratio", FORMULA, bias_correction="step", adapt_without_decay=True, min_ratio=0.8, max_ratio=1.2)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Checks


def distance(a, b):
    return max(float(np.max(np.abs(np.float64(x) - y) / (0.1 + np.abs(y)))) for p, q in zip(a, b) for x, y in zip(p, q))


def turned_over(options):
    """Each switch of a case, one at a time, as it is not."""
    for key, value in options.items():
        if isinstance(value, bool):
            yield key, {**options, key: not value}
    for other in ("moments", "step", "none"):
        if options.get("bias_correction", other) != other:
            yield "bias_correction to " + other, {**options, "bias_correction": other}
    for key in ("max_ratio", "max_grad_norm"):
        if key in options:
            yield key, {k: v for k, v in options.items() if k != key}
    if options.get("min_ratio"):
        yield "min_ratio", {**options, "min_ratio": 0}


def check(case, values):
    away = distance(values, formula(case, case.options))
    if not away < 1e-5:
        sys.exit(f"{case.name}: {case.source} and the formula differ by {away:.2g} with {case.options}")
    seen = {}
    for switch, options in turned_over(case.options):
        seen[switch] = distance(values, formula(case, options)) > 1e-3
    return away, seen


def main():
    parser = argparse.ArgumentParser(description="Writes optimizers.json beside this script.")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    args = parser.parse_args()

    made, visible = [], {}
    for case in cases():
        values = case.run(case)
        away, seen = check(case, values)
        made.append(case.to_json(values))
        for switch, is_seen in seen.items():
            visible.setdefault((case.optimizer, switch), []).extend([case.name] if is_seen else [])
        print(f"{case.name:30} {case.source[:24]:24} {away:.1e} from the formula; seen: "
              + ", ".join(s for s in seen if seen[s]))
    blind = [key for key, names in visible.items() if not names]
    if blind:
        sys.exit(f"no case would notice these switches: {blind}")

    about = "Made by generate.py beside this file; see there."
    text = '{"about": ' + json.dumps(about) + ', "cases": [\n' + ",\n".join(map(case_text, made)) + "\n]}\n"
    if args.check:
        sys.exit(0 if text == FILE.read_text() else "the committed file differs")
    FILE.write_text(text)
    print(f"{FILE.name}: {len(made)} cases, {len(text)} bytes")


def case_text(case):
    """One line per key and step, so that a change can be read."""
    lines = []
    for key, value in case.items():
        if key in ("gradients", "values"):
            rows = ",\n    ".join(one_line(row) for row in value)
            lines.append(f'  "{key}": [\n    {rows}]')
        else:
            lines.append(f'  "{key}": {one_line(value)}')
    return "{\n" + ",\n".join(lines) + "\n}"


def one_line(value):
    if isinstance(value, Number):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(one_line, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}": {one_line(v)}' for k, v in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    main()
