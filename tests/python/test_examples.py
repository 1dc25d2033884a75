# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python, as a reader starts them."""

import os
import re
import sys

import pytest
from programs import ROOT, run, run_ranks

FOLDER = os.path.join(ROOT, "examples", "python")
GUIDE = ["bert_recompute", "bert_lamb", "gradient_merge", "resnet50_lars", "resnet50_localsgd"]


def path(name):
    return os.path.join(FOLDER, name + ".py")


def report_of(output):
    """Bytes by name, of the MemoryReport that a program prints last."""
    sizes = re.findall(r"(\w+)=([0-9.]+) ([KMG]?i?B)", output.strip().rpartition("MemoryReport")[2])
    assert sizes, output
    return {name: float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit] for name, number, unit in sizes}


@pytest.mark.parametrize("name", GUIDE)
def test_the_guides_programs_train_on_two_ranks(tmp_path, name):
    pytest.importorskip("transformers" if name.startswith("bert") else "torchvision")
    output = run_ranks(tmp_path, path(name))
    costs = [float(x) for x in re.findall(r"cost = ([0-9.]+)", output)]
    assert len(costs) >= 2 and all(0 < x < 20 for x in costs), output
    assert "2 ranks" in output or "ranks 2" in output, output


def test_a_program_of_the_guide_has_at_most_forty_lines():
    for name in os.listdir(FOLDER):
        with open(os.path.join(FOLDER, name)) as file:
            assert len(file.readlines()) <= 40, name


def test_fine_tuning_keeps_within_half_of_plain(tmp_path):
    pytest.importorskip("transformers")
    report = report_of(run([sys.executable, path("finetune_under_a_budget")], cwd=tmp_path).rpartition("\n")[0].rpartition("\n")[0] + "\n")
    assert report["measured_peak"] <= report["budget"] <= 0.51 * report["plain_peak"]


@pytest.mark.parametrize("name, library", [("trainer_callback", "accelerate"), ("lightning_callback", "pytorch_lightning")])
def test_trainers_of_others_keep_within_the_budget(tmp_path, name, library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    report = report_of(run([sys.executable, path(name)], cwd=tmp_path))
    assert report["measured_peak"] <= report["budget"] <= 0.61 * report["plain_peak"]
