# SPDX-License-Identifier: Apache-2.0
"""fleet-bench python: unmodified models of transformers and torchvision at equal peak memory.

python_rows.py THREADS SIZE BATCH: writes "ready"; then each line on standard input, the name of a model, is answered by one line of
JSON: a list of rows [name, samples/s, peer, samples/s of the peer, note]. SIZE is full or small. "idle" is answered by what a budget
costs that is above the need, and "plain step" by the seconds of a step without one.
"""
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch._dynamo
import torch._functorch.config
import torchvision
import transformers as T
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fleet
from fleet._C import testing

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Fleet's lines are no answers

torch.set_num_threads(int(sys.argv[1]))
SMALL = sys.argv[2] == "small"
BATCH = int(sys.argv[3])
WARM_UP, STEPS = 4, 3  # plans are followed from the third step of a budget on
LAYERS, WIDTH, LENGTH, IMAGE = (2, 64, 32, 64) if SMALL else (12, 768, 128, 224)
HEADS = WIDTH // 64 if WIDTH >= 128 else 4


def text(model, batch):
    x = torch.randint(0, 1000, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    return model, lambda begin, end: model(input_ids=x[begin:end], labels=x[begin:end]).loss


def image(model, batch):
    x = torch.randn(batch, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))
    y = torch.arange(batch) % 10

    def loss(begin, end):
        out = model(x[begin:end])
        return F.cross_entropy(getattr(out, "logits", out), y[begin:end])

    return model, loss


def make(name, batch):
    torch.manual_seed(0)
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH)
    if name == "bert-base":
        return text(T.BertForMaskedLM(T.BertConfig(**sizes)), batch)
    if name == "gpt2":
        return text(T.GPT2LMHeadModel(T.GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)), batch)
    if name == "vit":
        return image(T.ViTForImageClassification(T.ViTConfig(**sizes, image_size=IMAGE, num_labels=10)), batch)
    return image(torchvision.models.resnet50(num_classes=10), batch)


def blocks_of(model):
    """The repeated layers of a net."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) >= LAYERS]
    if lists:
        return list(lists[0])
    return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]


def checksum(model):
    """Of the bits of all parameters and buffers."""
    bits = [x.detach().contiguous().view(torch.int32).sum().item() for x in [*model.parameters(), *model.buffers()] if x.element_size() == 4]
    return hash(tuple(bits))


def measure(name, batch, way, budget=None):
    """Samples/s, peak of the activations, and a checksum of the model after the last step."""
    gc.collect()
    torch._dynamo.reset()
    model, loss = make(name, batch)
    model.train()
    micro_batches = int(way.split()[1]) if way.startswith("accumulate") else 1
    if way.startswith("checkpoint"):
        for block in blocks_of(model):
            block.forward = (lambda f: lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k))(block.forward)
    if way.startswith("compile"):
        torch._functorch.config.activation_memory_budget = budget[1]
        loss = torch.compile(loss)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    torch.manual_seed(3)
    memory_budget = None
    seconds, peak = [], 0
    for step in range(WARM_UP + STEPS):
        optimizer.zero_grad(set_to_none=step == 0)
        live = testing.counted()
        testing.reset_peak()
        begin = time.perf_counter()
        if way.startswith("fleet") and step > 0:  # gradients and the optimizer's state exist
            memory_budget = memory_budget or fleet.MemoryBudget(f"{live + int(budget[0])}B", offload="offload" in way)
            memory_budget.step(lambda: loss(0, batch))
        elif way == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu():
                value = loss(0, batch)
            value.backward()
        else:
            for i in range(micro_batches):
                (loss(i * batch // micro_batches, (i + 1) * batch // micro_batches) / micro_batches).backward()
        value = None
        seconds.append(time.perf_counter() - begin)
        if step >= WARM_UP:
            peak = max(peak, testing.peak() - live)
        optimizer.step()
    return batch / min(seconds[WARM_UP:]), peak, checksum(model)


def peer(name, way, budget=None):
    """What `measure` returns, or the reason why it does not run here."""
    try:
        return measure(name, BATCH, way, budget)
    except Exception as error:  # a peer that does not run is a row too
        return str(error).strip().split("\n")[0][:120] or type(error).__name__


def rows_of(name):
    counting = testing.Counting()
    plain, activations, expected = measure(name, BATCH, "plain")
    fixed = {way: peer(name, way) for way in ("checkpoint per layer", "save_on_cpu")}
    rows = []
    for share, micro_batches in ((0.5, 2), (0.25, 4)):
        limit = share * activations
        title = f"{name}, batch {BATCH}, {share:.0%} of {activations / 2**20:.0f} MiB of activations"
        ours = peer(name, "fleet", (limit, share))
        if isinstance(ours, str):
            rows.append([title, 0, "Fleet itself", 0, ours])
            continue
        equal = "bits of plain" if ours[2] == expected else "NOT the bits of plain"
        rows.append([title, ours[0], "plain, all of them", plain, f"peak {ours[1] / activations:.1%}, {equal}"])
        peers = {way: peer(name, way, (limit, share)) for way in (f"accumulate {micro_batches}", "compile, activation_memory_budget", "fleet, offload")}
        for way, theirs in {**fixed, **peers}.items():
            if isinstance(theirs, str):
                rows.append([title, ours[0], way, 0, f"does not run: {theirs}"])
            else:
                fits = "" if theirs[1] <= limit else "does not fit, "
                equal = "bits of plain" if theirs[2] == expected else "other bits"
                rows.append([title, ours[0], way, theirs[0], f"{fits}its peak {theirs[1] / activations:.1%}, {equal}"])
    del counting
    return rows


@functools.cache
def stepper(budget):
    """Runs a step of BERT-base and returns its seconds; within a budget, or plainly in a process that has none."""
    model, loss = make("bert-base", BATCH)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    limit = fleet.MemoryBudget(budget) if budget else None

    def step():
        optimizer.zero_grad(set_to_none=False)
        begin = time.perf_counter()
        if limit:
            limit.step(lambda: loss(0, BATCH))
        else:
            loss(0, BATCH).backward()
        seconds = time.perf_counter() - begin
        optimizer.step()
        return seconds

    return step


def idle_rows():
    """One step of each in turn, so that both meet the same machine."""
    rounds = 5 if SMALL else 15
    ours, plain = [], []
    with subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        for _ in range(WARM_UP + rounds):
            print("plain step", file=process.stdin, flush=True)
            plain.append(json.loads(process.stdout.readline()))
            ours.append(stepper("1TiB")())
        process.stdin.close()
    a, b = (statistics.median(seconds[WARM_UP:]) for seconds in (ours, plain))
    return [[f"bert-base, batch {BATCH}, a budget above its need", BATCH / a, "plain", BATCH / b, f"{a / b - 1:+.1%} time, medians of {rounds} steps in turn; the aim is +2 %"]]


def answer(request):
    if request == "plain step":
        return stepper(None)()
    return idle_rows() if request == "idle" else rows_of(request)


print("ready", file=answers, flush=True)
for line in sys.stdin:
    print(json.dumps(answer(line.strip())), file=answers, flush=True)
