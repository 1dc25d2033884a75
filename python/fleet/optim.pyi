# SPDX-License-Identifier: Apache-2.0
from typing import Any, Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

_Params = nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]

class _Optimizer(Optimizer):
    model: nn.Module | None

class SGD(_Optimizer):
    def __init__(self, params: _Params, lr: float = 0.01, *, weight_decay: float = 0.0) -> None: ...

class Momentum(_Optimizer):
    def __init__(self, params: _Params, lr: float = 0.01, momentum: float = 0.9, *, weight_decay: float = 0.0, use_nesterov: bool = False) -> None: ...

class Adam(_Optimizer):
    def __init__(self, params: _Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None: ...

class AdamW(Adam):
    def __init__(self, params: _Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01) -> None: ...

class Lars(_Optimizer):
    def __init__(
        self,
        params: _Params,
        lr: float = 0.01,
        momentum: float = 0.9,
        *,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        epsilon: float = 0.0,
        use_nesterov: bool = False,
        exclude_from_weight_decay: Iterable[str] = (),
        rule: str = "fleet",
    ) -> None: ...

class Lamb(_Optimizer):
    def __init__(
        self,
        params: _Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        *,
        lamb_weight_decay: float = 0.01,
        exclude_from_weight_decay: Iterable[str] = (),
        rule: str = "fleet",
    ) -> None: ...
