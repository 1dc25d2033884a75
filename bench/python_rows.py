# SPDX-License-Identifier: Apache-2.0
"""fleet-bench python: unmodified models of transformers and torchvision at equal peak memory.

python_rows.py THREADS SIZE: writes "ready"; then each line on standard input, the name of a model, is answered by one line of
JSON: a list of rows [name, samples/s, peer, samples/s of the peer, note]. SIZE is full or small.
"""
import gc
import json
import sys
import time

import torch
import torchvision
import transformers as T
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fleet
from fleet._C import testing

torch.set_num_threads(int(sys.argv[1]))
SMALL = sys.argv[2] == "small"
STEPS = 3 if SMALL else 5
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


def measure(name, batch, way, budget=None):
    """Samples/s, peak of the activations and what was live before, or None where it does not run."""
    gc.collect()
    model, loss = make(name, batch)
    model.train()
    parts = 1
    if way == "checkpoint":
        for block in blocks_of(model):
            block.forward = (lambda f: lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k))(block.forward)
    if way == "compile":
        import torch._functorch.config as config

        config.activation_memory_budget = budget[1]
        plain = loss
        loss = torch.compile(plain)
    if way.startswith("accumulate"):
        parts = int(way.split()[1])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    torch.manual_seed(3)
    strategy = None
    seconds, peak = [], 0
    for step in range(STEPS + 3):
        optimizer.zero_grad(set_to_none=step == 0)
        live = testing.counted()
        testing.reset_peak()
        begin = time.perf_counter()
        if way.startswith("fleet"):
            if step == 1:
                strategy = fleet.MemoryBudget(str(live + int(budget[0])), offload=way == "fleet, offload")
            if strategy:
                strategy.step(lambda: loss(0, batch))
            else:
                loss(0, batch).backward()
        elif way == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu():
                value = loss(0, batch)
            value.backward()
        else:
            for i in range(parts):
                (loss(i * batch // parts, (i + 1) * batch // parts) / parts).backward()
        value = None
        seconds.append(time.perf_counter() - begin)
        if step >= 3:
            peak = max(peak, testing.peak() - live)
        optimizer.step()
    return batch / sorted(seconds[3:])[STEPS // 2], peak


def rows_of(name):
    counting = testing.Counting()
    batch = 8
    plain, activations = measure(name, batch, "plain")
    rows = []
    for share, parts in ((0.5, 2), (0.25, 4)):
        limit = share * activations
        try:
            ours, peak = measure(name, batch, "fleet", (limit, share))
        except fleet.Error as error:
            rows.append([f"{name}, {share:.0%} of its activations", 0, "Fleet itself", 0, str(error).split("\n")[0]])
            continue
        title = f"{name}, batch {batch}, {share:.0%} of {activations / 2**20:.0f} MiB of activations"
        rows.append([title, ours, "plain, all of them", plain, f"peak {peak / activations:.0%}"])
        for way in (f"accumulate {parts}", "checkpoint", "save_on_cpu", "compile", "fleet, offload"):
            try:
                theirs, peak = measure(name, batch, way, (limit, share))
                fits = "" if peak <= limit else "does not fit: "
                rows.append([title, ours, way, theirs, f"{fits}its peak {peak / activations:.0%}"])
            except Exception as error:  # a peer that does not run here is a row too
                rows.append([title, ours, way, 0, f"does not run: {type(error).__name__}"])
    del counting
    return rows


print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(rows_of(line.strip())), flush=True)
