#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_round_trip.py FLEET: a model of transformers through `fleet convert` and back; ends with 77, and says why, where the
packages are not there."""

import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig, BertForPreTraining
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

torch.manual_seed(1)
model = BertForPreTraining(BertConfig(vocab_size=50, max_position_embeddings=512))
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    model.save_pretrained(folder)
    subprocess.run(
        [sys.argv[1], "convert", "--model", "bert-base", "--vocab", "50", "--from", folder / "model.safetensors", "--to", folder / "fleet"],
        check=True,
    )
    back = load_file(folder / "fleet")
    other = BertForPreTraining(model.config)
    lost = other.load_state_dict(back, strict=False)
    assert set(lost.missing_keys) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}, lost.missing_keys
    assert not lost.unexpected_keys, lost.unexpected_keys
    other.tie_weights()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    # The same tensors give the same bytes in both libraries.
    save_file(back, folder / "python", {"format": "pt"})
    assert (folder / "python").read_bytes() == (folder / "fleet").read_bytes()
print(f"{len(back)} tensors went both ways")
