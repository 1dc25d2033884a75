#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what other libraries' models compute, for Fleet's to be held against: one file per case, and presets.json.

The committed files were made with Python 3.11, torch 2.15.0, torchvision 0.29.2 and transformers 5.22.2, on the CPU. To
write them anew, in an environment of their own:

    pip install numpy==2.4.6 torch==2.15.0 torchvision==0.29.2 transformers==5.22.2
    python tests/applications/golden/generate.py     # or --check: compares with the committed files

It needs no network and no random state: weights and images come from a counter, which the test has too, so that only
results are in the file. Everything is computed in double precision.

A case:
    source            which library and version made it
    options           what Fleet's model is built with
    batch             tokens and labels; for images: image_numbers(stream, shape)
    tensors           [{name, shape, shift, scale, norm, max, samples, dots}], in the library's order: number i of them
                      starts as shift + scale * counter_numbers(i, ...), and the rest describes its gradient: Euclidean
                      norm, largest magnitude, `samples` (every element, or 32 spread evenly) and `dots`, its products
                      with counter_numbers(DOTS + 0..3, ...)
    scores, loss      what forward gives, row-major, without what is padding; all parts of the loss where it has some
    buffers           {name: values} after that forward in training mode, for models with batch norm; and `eval_scores`,
                      what forward gives in evaluation mode after it
presets.json: {preset: ["name size size ...", ...]}, every parameter and buffer of the full-size models.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from counter_numbers import counter_numbers

HERE = pathlib.Path(__file__).parent
IMAGES, DOTS = 5000, 6000
SAMPLES = 32
TORCH = "torch " + torch.__version__.split("+")[0]
TORCHVISION = "torchvision " + torchvision.__version__.split("+")[0]
TRANSFORMERS = "transformers " + transformers.__version__


def counter_tensor(stream, shape):
    return torch.from_numpy(counter_numbers(stream, math.prod(shape))).view(*shape)


def image_numbers(stream, shape):
    """Finer than the numbers they are made of: no two are likely to tie in a pool."""
    return counter_tensor(stream, shape) / 2 + counter_tensor(stream + 1, shape) / 256


def start_of(model, name, parameter):
    """(shift, scale): about what a trained model has, and exact in float."""
    if parameter.dim() >= 2:
        fan_in = parameter[0].numel()
        return 0.0, 2.0 ** round(math.log2(fan_in**-0.5))
    if name.endswith("weight"):  # of a norm
        return 1.0, 0.125
    # Most of what follows a batch norm is then some way from the kink of the relu: see kink_distance().
    return 1.0 if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d) else 0.0, 0.0625


def fill(model):
    model.double()
    for i, (name, parameter) in enumerate(model.named_parameters()):
        shift, scale = start_of(model, name, parameter)
        parameter.data.copy_(shift + scale * counter_tensor(i, parameter.shape))


def listed(tensor):
    return [float(x) for x in tensor.detach().double().flatten()]


def tensors_of(model):
    out = []
    for i, (name, parameter) in enumerate(model.named_parameters()):
        shift, scale = start_of(model, name, parameter)
        g = parameter.grad.flatten()
        step = max(1, g.numel() // SAMPLES)
        out.append(
            {
                "name": name,
                "shape": list(parameter.shape),
                "shift": shift,
                "scale": scale,
                "norm": float(g.norm()),
                "max": float(g.abs().max()),
                "samples": listed(g[::step][:SAMPLES]),
                "dots": [float(g @ counter_tensor(DOTS + k, g.shape)) for k in range(4)],
            }
        )
    return out


def bert_case():
    options = dict(vocab=48, hidden=32, layers=2, heads=4, intermediate=64, max_positions=16, type_vocab=2)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=options["vocab"],
            hidden_size=options["hidden"],
            num_hidden_layers=options["layers"],
            num_attention_heads=options["heads"],
            intermediate_size=options["intermediate"],
            max_position_embeddings=options["max_positions"],
            type_vocab_size=options["type_vocab"],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    fill(model)
    model.train()
    n, s = 3, 12
    used = [12, 7, 9]
    ids = (counter_tensor(IMAGES, (n, s)) * 64 + 128).long() % (options["vocab"] - 1) + 1
    mask = torch.tensor([[int(p < u) for p in range(s)] for u in used])
    ids = ids * mask
    types = torch.tensor([[int(u // 2 <= p < u) for p in range(s)] for u in used])
    positions = [1, 4, 10, s + 2, 2 * s + 3, 2 * s + 5]
    labels = [7, 30, 2, 19, 44, 11]
    all_labels = torch.full((n * s,), -100)
    all_labels[positions] = torch.tensor(labels)
    next_sentence = torch.tensor([0, 1, 1])
    out = model(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=types,
        labels=all_labels.view(n, s),
        next_sentence_label=next_sentence,
    )
    out.loss.backward()
    masked_scores = out.prediction_logits.reshape(n * s, -1)[positions]
    return {
        "source": TRANSFORMERS,
        "options": options,
        "batch": {
            "token_ids": ids.tolist(),
            "token_type_ids": types.tolist(),
            "attention_mask": mask.tolist(),
            "masked_positions": positions,
            "masked_labels": labels,
            "next_sentence_labels": next_sentence.tolist(),
        },
        "tensors": tensors_of(model),
        "scores": listed(masked_scores),
        "next_sentence_scores": listed(out.seq_relationship_logits),
        "loss": out.loss.item(),
        "masked_lm_loss": F.cross_entropy(masked_scores, torch.tensor(labels)).item(),
        "next_sentence_loss": F.cross_entropy(out.seq_relationship_logits, next_sentence).item(),
    }


def kink_distance(model, images):
    """How near any number comes to where the gradient jumps: the kink of a relu, a tie in a pool.

    Within rounding of one, a gradient in float has nothing to do with one in double.
    """
    nearest = [math.inf]

    def look(module, inputs):
        x = inputs[0].detach()
        if isinstance(module, nn.ReLU):
            nearest.append(x.abs().min().item())
        else:
            pad, k = module.padding, module.kernel_size
            windows = F.pad(x, [pad] * 4).unfold(2, k, module.stride).unfold(3, k, module.stride).flatten(-2)
            best = windows.topk(2).values
            gaps = (best[..., 0] - best[..., 1])[best[..., 0] > 0]
            nearest.append(gaps.min().item())

    hooks = [m.register_forward_pre_hook(look) for m in model.modules() if isinstance(m, (nn.ReLU, nn.MaxPool2d))]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return min(nearest)


def image_case(source, options, model, shape):
    fill(model)
    model.train()
    target = torch.arange(shape[0]) * 3 % options["classes"]
    start = {key: b.clone() for key, b in model.named_buffers()}
    for stream in range(IMAGES, IMAGES + 200):
        images = image_numbers(stream, shape)
        if kink_distance(model, images) > 1e-5:
            break
    else:
        sys.exit("no images that keep away from all kinks")
    for key, b in model.named_buffers():
        b.copy_(start[key])
    scores = model(images)
    loss = F.cross_entropy(scores, target, label_smoothing=options.get("label_smoothing", 0.0))
    loss.backward()
    case = {
        "source": source,
        "options": options,
        "batch": {"shape": list(shape), "stream": stream, "target": target.tolist()},
        "tensors": tensors_of(model),
        "scores": listed(scores),
        "loss": loss.item(),
        "buffers": {key: listed(b) for key, b in model.named_buffers() if b.numel() <= 256},
    }
    model.eval()
    case["eval_scores"] = listed(model(images))
    return case


def resnet_case(bottleneck, blocks, classes, label_smoothing=0.0):
    block = torchvision.models.resnet.Bottleneck if bottleneck else torchvision.models.resnet.BasicBlock
    model = torchvision.models.ResNet(block, blocks, num_classes=classes)
    options = {"blocks": blocks, "bottleneck": bottleneck, "classes": classes, "label_smoothing": label_smoothing}
    return image_case(TORCHVISION, options, model, (8, 3, 32, 32))


def vgg_case(batch_norm):
    options = {
        "stages": [[8, 16], [32], [32, 32]],
        "batch_norm": batch_norm,
        "pooled": 3,
        "hidden": 24,
        "classes": 10,
    }
    config = [x for stage in options["stages"] for x in stage + ["M"]]
    features = torchvision.models.vgg.make_layers(config, batch_norm=batch_norm)
    with torch.device("meta"):  # its classifier is replaced by a small one of the same build
        model = torchvision.models.VGG(nn.Identity(), init_weights=False)
    inner = options["stages"][-1][-1] * options["pooled"] ** 2
    hidden, classes = options["hidden"], options["classes"]
    model.features = features
    model.avgpool = nn.AdaptiveAvgPool2d(options["pooled"])
    for place, sizes in {0: (inner, hidden), 3: (hidden, hidden), 6: (hidden, classes)}.items():
        model.classifier[place] = nn.Linear(*sizes)
    for layer in model.classifier:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return image_case(TORCHVISION, options, model, (3, 3, 32, 32))


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with what the paper puts around it."""

    def __init__(self, o):
        super().__init__()
        shared = o["shared_embeddings"]
        if shared:
            self.embedding = nn.Embedding(o["source_vocab"], o["width"])
        else:
            self.source_embedding = nn.Embedding(o["source_vocab"], o["width"])
            self.target_embedding = nn.Embedding(o["target_vocab"], o["width"])
        whole = nn.Transformer(
            o["width"],
            o["heads"],
            o["encoder_layers"],
            o["decoder_layers"],
            o["feed_forward"],
            dropout=0.0,
            batch_first=True,
        )
        if not o["final_norm"]:
            whole.encoder.norm = whole.decoder.norm = None
        self.encoder, self.decoder = whole.encoder, whole.decoder
        if not shared:
            self.generator = nn.Linear(o["width"], o["target_vocab"], bias=False)
        self.width, self.shared = o["width"], shared

    def embed(self, table, tokens):
        positions = torch.zeros(tokens.shape[1], self.width, dtype=torch.float64)
        for p in range(tokens.shape[1]):
            for i in range(0, self.width, 2):
                angle = p / 10000 ** (i / self.width)
                positions[p, i], positions[p, i + 1] = math.sin(angle), math.cos(angle)
        # Fleet keeps positions in float.
        return table(tokens) * math.sqrt(self.width) + positions.float().double()

    def forward(self, source, source_mask, target):
        source_table = self.embedding if self.shared else self.source_embedding
        target_table = self.embedding if self.shared else self.target_embedding
        padding = source_mask == 0
        memory = self.encoder(self.embed(source_table, source), src_key_padding_mask=padding)
        causal = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        y = self.decoder(
            self.embed(target_table, target), memory, tgt_mask=causal, memory_key_padding_mask=padding
        )
        return y @ self.embedding.weight.T if self.shared else self.generator(y)


def transformer_case(shared):
    options = {
        "source_vocab": 40,
        "target_vocab": 40 if shared else 33,
        "width": 32,
        "feed_forward": 48,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_positions": 16,
        "label_smoothing": 0.1,
        "shared_embeddings": shared,
        "final_norm": not shared,
    }
    model = PlainTransformer(options)
    fill(model)
    model.train()
    n, s, t = 3, 9, 7
    source_mask = torch.tensor([[int(p < u) for p in range(s)] for u in [9, 5, 7]])
    target_mask = torch.tensor([[int(p < u) for p in range(t)] for u in [6, 7, 3]])
    numbers = lambda stream, *shape: (counter_tensor(IMAGES + stream, shape) * 64 + 128).long()
    source = (numbers(0, n, s) % (options["source_vocab"] - 1) + 1) * source_mask
    target = numbers(1, n, t + 1) % (options["target_vocab"] - 1) + 1
    target[:, 1:] *= target_mask
    scores = model(source, source_mask, target[:, :-1])
    labels = target[:, 1:].masked_fill(target_mask == 0, -100)
    loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    loss.backward()
    real = target_mask.bool()
    return {
        "source": TORCH,
        "options": options,
        "batch": {
            "source": source.tolist(),
            "source_mask": source_mask.tolist(),
            "target": target.tolist(),
            "target_mask": target_mask.tolist(),
        },
        "tensors": tensors_of(model),
        "scores": listed(scores[real]),
        "loss": loss.item(),
        "negative_log_likelihood": F.cross_entropy(scores[real], target[:, 1:][real]).item(),
    }


def cases():
    return {
        "bert": bert_case(),
        "resnet_basic": resnet_case(False, [1, 1, 1, 1], 10),
        "resnet_bottleneck": resnet_case(True, [1, 2, 1, 1], 10, label_smoothing=0.1),
        "vgg": vgg_case(batch_norm=False),
        "vgg_bn": vgg_case(batch_norm=True),
        "transformer_paper": transformer_case(shared=True),
        "transformer_torch": transformer_case(shared=False),
    }


def presets():
    models = torchvision.models
    large = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    makers = {
        "resnet18": models.resnet18,
        "resnet50": models.resnet50,
        "resnet101": models.resnet101,
        "resnet152": models.resnet152,
        "vgg16": models.vgg16,
        "vgg16_bn": models.vgg16_bn,
        "bert_base": lambda: transformers.BertForPreTraining(transformers.BertConfig()),
        "bert_large": lambda: transformers.BertForPreTraining(transformers.BertConfig(**large)),
        "transformer_base": lambda: nn.Transformer(512, 8, 6, 6, 2048),
        "transformer_big": lambda: nn.Transformer(1024, 16, 6, 6, 4096),
    }
    out = {}
    for name, make in makers.items():
        with torch.device("meta"):
            model = make()
        tensors = dict(model.named_parameters())
        # transformers keeps counting tensors as buffers that no file has.
        tensors.update((key, b) for key, b in model.named_buffers() if key in model.state_dict())
        out[name] = [" ".join([key, *map(str, t.shape)]) for key, t in tensors.items()]
    return out


def text_of(value):
    """A line for each element of a list."""
    rows = lambda item: "[\n" + ",\n".join(map(json.dumps, item)) + "]" if isinstance(item, list) else json.dumps(item)
    return "{" + ",\n".join(f"{json.dumps(key)}: {rows(item)}" for key, item in value.items()) + "}\n"


def same(a, b):
    """Equal but for the last digits, in which machines differ."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    for name, value in {**cases(), "presets": presets()}.items():
        file = HERE / f"{name}.json"
        if not arguments.check:
            file.write_text(text_of(value))
            print(f"{file.name}: {file.stat().st_size} bytes")
        elif not same(value, json.loads(file.read_text())):
            sys.exit(f"{file.name} is not what this script makes")


if __name__ == "__main__":
    main()
