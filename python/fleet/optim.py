# SPDX-License-Identifier: Apache-2.0
"""The optimizers of Fleet as torch.optim.Optimizer, with fused kernels on the CPU.

Parameters, an iterable of (name, parameter), param_groups or a module go in; schedulers of torch,
state_dict and transformers.Trainer(optimizers=...) work as with torch's own. SGD, Momentum, Adam and
AdamW read state dictionaries of torch.optim. `fleet.distributed_optimizer` takes them too.
"""

import torch

from fleet._C import optim as _kernels
from fleet._errors import Error

__all__ = ["SGD", "Momentum", "Adam", "AdamW", "Lars", "Lamb"]


class _Optimizer(torch.optim.Optimizer):
    _area = ""  # of LARS and LAMB
    _states = ()  # names of the state tensors

    def __init__(self, params, defaults):
        self.model = params if isinstance(params, torch.nn.Module) else None
        self._excluded_of = {}
        super().__init__(self.model.named_parameters() if self.model is not None else params, defaults)
        if self._area:
            for group in self.param_groups:
                self._excluded(group, [])  # names and rules that are unknown are errors from the start

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            if any(p.grad.is_sparse for p in params):
                raise Error("[optim] a gradient is sparse, and the fused kernels read dense ones")
            states = [self._state_of(p) for p in params]
            columns = [[s[name] for s in states] for name in self._states]
            self._update(group, params, [p.grad for p in params], columns, states)
        return loss

    def _state_of(self, p):
        state = self.state[p]
        for name in self._states:
            if state.get(name) is None:
                state[name] = torch.zeros_like(p, dtype=torch.float32, memory_format=torch.preserve_format)
        return state

    def _excluded(self, group, params):
        """Of LARS and LAMB: whether each is left out of decay, as C++ decides from names and modules."""
        groups = [(p, name) for g in self.param_groups for p, name in zip(g["params"], g.get("param_names") or [""] * len(g["params"]))]
        key = (tuple(group["exclude_from_weight_decay"]), group["rule"], *(id(p) for p, _ in groups))
        if key not in self._excluded_of:
            names = [name for _, name in groups] if all("param_names" in g for g in self.param_groups) else []
            every = [p for p, _ in groups]
            flags = _kernels.excluded_from_decay(self._area, self.model, names, every, list(key[0]), key[1])
            self._excluded_of[key] = {id(p): flag for p, flag in zip(every, flags)}
        return [self._excluded_of[key][id(p)] for p in params]

    def __getstate__(self):
        return {**super().__getstate__(), "model": self.model, "_excluded_of": {}}

    def _update(self, group, params, grads, columns, states):
        raise NotImplementedError


def _count(states):
    for state in states:
        state.setdefault("step", torch.tensor(0.0))
        state["step"] += 1
    return [int(state["step"]) for state in states]


class SGD(_Optimizer):
    """p -= lr * (g + weight_decay * p)"""

    def __init__(self, params, lr=0.01, *, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    def _update(self, group, params, grads, columns, states):
        _kernels.sgd(params, grads, float(group["lr"]), group["weight_decay"])


class Momentum(_Optimizer):
    """d = g + weight_decay * p;  v = momentum * v + d;  p -= lr * v, or lr * (d + momentum * v) with nesterov."""

    _states = ("momentum_buffer",)

    def __init__(self, params, lr=0.01, momentum=0.9, *, weight_decay=0.0, use_nesterov=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=use_nesterov))

    def _update(self, group, params, grads, columns, states):
        _kernels.momentum(params, grads, *columns, float(group["lr"]), group["momentum"], group["weight_decay"], group["nesterov"])


class Adam(_Optimizer):
    """Kingma and Ba, arXiv 1412.6980; weight_decay is L2, added to the gradient."""

    _states = ("exp_avg", "exp_avg_sq")
    _decoupled = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def _update(self, group, params, grads, columns, states):
        _kernels.adam(params, grads, *columns, _count(states), float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"], self._decoupled)


class AdamW(Adam):
    """Loshchilov and Hutter, arXiv 1711.05101: Adam whose decay does not pass through its moments."""

    _decoupled = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr, betas, eps, weight_decay)


class Lars(_Optimizer):
    """You, Gitman and Ginsburg, arXiv 1708.03888: each parameter tensor has a rate of its own.

    rule: fleet, paper, paddle_cpu, paddle_gpu, mlperf, apex_larc or timm (docs/strategies/lars.md).
    Biases and norms are left out of decay and ratio unless the rule says otherwise.
    """

    _area = "LARS"
    _states = ("momentum_buffer",)

    def __init__(self, params, lr=0.01, momentum=0.9, *, lars_coeff=0.001, lars_weight_decay=0.0005, epsilon=0.0, use_nesterov=False, exclude_from_weight_decay=(), rule="fleet"):
        super().__init__(
            params,
            dict(lr=lr, momentum=momentum, lars_coeff=lars_coeff, lars_weight_decay=lars_weight_decay, epsilon=epsilon, nesterov=use_nesterov, exclude_from_weight_decay=list(exclude_from_weight_decay), rule=rule),
        )

    def _update(self, group, params, grads, columns, states):
        out = self._excluded(group, params)
        _kernels.lars(params, grads, *columns, out, float(group["lr"]), group["momentum"], group["lars_coeff"], group["lars_weight_decay"], group["epsilon"], group["nesterov"], group["rule"])


class Lamb(_Optimizer):
    """You et al., arXiv 1904.00962: Adam's direction, scaled to the norm of each parameter tensor.

    rule: fleet, paper, paddle, apex, nvlamb, deepspeed, timm or timm_trust_clip
    (docs/strategies/lamb.md). Biases and norms are left out unless the rule says otherwise.
    """

    _area = "LAMB"
    _states = ("exp_avg", "exp_avg_sq")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), epsilon=1e-6, *, lamb_weight_decay=0.01, exclude_from_weight_decay=(), rule="fleet"):
        super().__init__(
            params,
            dict(lr=lr, betas=betas, epsilon=epsilon, lamb_weight_decay=lamb_weight_decay, exclude_from_weight_decay=list(exclude_from_weight_decay), rule=rule),
        )

    def _update(self, group, params, grads, columns, states):
        out = self._excluded(group, params)
        _kernels.lamb(params, grads, *columns, _count(states), out, float(group["lr"]), *group["betas"], group["epsilon"], group["lamb_weight_decay"], group["rule"])
