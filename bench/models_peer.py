# SPDX-License-Identifier: Apache-2.0
"""The peer of fleet-bench models: the same nets in PyTorch, tuned by hand: fused optimizers, attention by plain products (on CPUs
quicker than scaled_dot_product_attention once there is dropout), freed pages kept.

models_peer.py THREADS TYPE: writes "ready"; then each line on standard input is answered when it is done. "bert LAYERS BATCH SEQ
MASKED" and "resnet50 BATCH SIZE" make a net and its data, "step" is one update of it, "peak" is answered by the most memory in
MiB that it took, "forget" drops it. TYPE is float32 or bfloat16 (autocast).
"""
import ctypes
import sys

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

HIDDEN, HEADS, VOCAB = 1024, 16, 30522
TYPE = getattr(torch, sys.argv[2])
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
torch.set_num_threads(int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.mallopt(M_MMAP_MAX, 0)
libc.mallopt(M_TRIM_THRESHOLD, -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, eps=1e-12), nn.LayerNorm(HIDDEN, eps=1e-12)

    def forward(self, x, mask):
        heads = [f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        query, key, value = heads
        scores = query @ key.transpose(-2, -1) / (HIDDEN // HEADS) ** 0.5 + mask
        context = F.dropout(scores.softmax(-1), 0.1) @ value
        x = self.norm1(x + F.dropout(self.dense(context.transpose(1, 2).flatten(2)), 0.1))
        return self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1))


class Bert(nn.Module):
    """BERT large with fewer layers and both heads; scores masked places only."""

    def __init__(self, layers):
        super().__init__()
        self.words, self.places, self.types = (nn.Embedding(n, HIDDEN) for n in (VOCAB, 512, 2))
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.pooler, self.transform = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.transform_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        self.follows = nn.Linear(HIDDEN, 2)

    def loss(self, tokens, types, mask, positions, labels, follows):
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1))) + self.types(types)
        x = F.dropout(self.norm(x), 0.1)
        for layer in self.layers:
            x = layer(x, mask)
        masked = self.transform_norm(F.gelu(self.transform(x.flatten(0, 1)[positions])))
        scores = F.linear(masked, self.words.weight, self.bias)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.cross_entropy(scores, labels) + F.cross_entropy(self.follows(pooled), follows)


def make_bert(layers, batch, seq, masked):
    model = Bert(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = (torch.randint(VOCAB, (batch, seq)), torch.randint(2, (batch, seq)), torch.zeros(batch, 1, 1, seq),
            torch.randperm(batch * seq)[:masked], torch.randint(VOCAB, (masked,)), torch.randint(2, (batch,)))
    return model, optimizer, lambda: model.loss(*data)


def make_resnet50(batch, size):
    model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,))
    return model, optimizer, lambda: F.cross_entropy(model(images), labels)


def resident_peak():
    """In MiB, since the last net was dropped."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def forget():
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def answer(words, held):
    """What is held after the command, and what is said."""
    if words[0] == "forget":
        return None, "done"
    if words[0] == "peak":
        return held, str(resident_peak())
    if words[0] != "step":
        return {"bert": make_bert, "resnet50": make_resnet50}[words[0]](*map(int, words[1:])), "done"
    _, optimizer, loss = held
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=TYPE is torch.bfloat16):
        value = loss()
    value.backward()
    optimizer.step()
    return held, "done"


held = None
print("ready", flush=True)
for line in sys.stdin:
    held, reply = answer(line.split(), held)
    if held is None:
        forget()
    print(reply, flush=True)
