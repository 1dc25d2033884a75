# SPDX-License-Identifier: Apache-2.0
"""Snapshots of several optimizers, and of values of the program's own."""

import math

import pytest
import torch
from test_strategy import X, Y, loss_of, net

import fleet


def two(steps, folder):
    """A generator and a discriminator, as it were, and an average of weights."""
    nets = {"first": net(), "second": net()}
    optimizers = {"first": fleet.distributed_optimizer(fleet.optim.Adam(nets["first"], lr=0.01))}
    optimizers["second"] = fleet.distributed_optimizer(torch.optim.RMSprop(nets["second"].parameters(), 0.01), model=nets["second"])
    average = torch.optim.swa_utils.AveragedModel(nets["first"])
    values = {"best": math.inf, "patience": 3, "name": "run", "is_good": False, "losses": [], "seen": torch.zeros(2), "average": average}
    position = fleet.DataPosition()
    snapshots = fleet.Snapshots(optimizers, str(folder), save_every=4, data=position, values=values)
    for i in range(position.next_update, steps):
        for name, optimizer in optimizers.items():
            report = optimizer.minimize((X, Y), lambda b: loss_of(nets[name], *b))
        average.update_parameters(nets["first"])
        values["best"] = min(values["best"], report.loss)
        values["patience"] -= 1
        values["name"] += "!"
        values["is_good"] = not values["is_good"]
        values["losses"].append(report.loss)
        values["seen"] = values["seen"] + 1
        position.next_update = i + 1
        snapshots.after_update()
    snapshots.finish()
    tensors = [p for model in [*nets.values(), average] for p in model.state_dict().values()]
    return tensors, {name: value for name, value in values.items() if name != "average"}, snapshots.resumed


def test_all_resume_as_never_stopped(tmp_path):
    two(3, tmp_path / "a")
    tensors, values, resumed = two(7, tmp_path / "a")
    expected, expected_values, _ = two(7, tmp_path / "b")
    assert resumed == 6  # updates of both
    for a, b in zip(tensors, expected):
        assert torch.equal(a, b)
    assert torch.equal(values.pop("seen"), expected_values.pop("seen"))
    assert values == expected_values
    assert values["patience"] == -4 and values["name"] == "run!!!!!!!" and len(values["losses"]) == 7


def one(**options):
    return fleet.Snapshots(fleet.distributed_optimizer(fleet.optim.SGD(net())), **options)


def test_models_that_no_optimizer_trains(tmp_path):
    def run(start):
        optimizer = fleet.distributed_optimizer(fleet.optim.SGD(net()))
        frozen = torch.nn.Linear(2, 2)
        if start:
            torch.nn.init.constant_(frozen.weight, 3.0)
        else:
            torch.nn.init.constant_(frozen.weight, 7.0)
        snapshots = fleet.Snapshots({"trained": optimizer}, str(tmp_path), models={"frozen": frozen})
        snapshots.save()
        snapshots.finish()
        return frozen.weight[0, 0].item()

    assert run(True) == 3.0
    assert run(False) == 3.0


def test_what_cannot_be_kept_is_refused(tmp_path):
    folder = str(tmp_path / "a")
    with pytest.raises(fleet.UsageError, match="the value 'data' is dict, which snapshots do not keep"):
        one(snapshot_dir=folder, values={"data": {}})
    with pytest.raises(fleet.UsageError, match="values= is list, and a dictionary is expected"):
        one(snapshot_dir=folder, values=[1])
    with pytest.raises(fleet.UsageError, match="snapshots are made of Adam"):
        fleet.Snapshots(fleet.optim.Adam(net()), folder)
    with pytest.raises(fleet.UsageError, match="a dictionary of something else"):
        fleet.Snapshots({"g": fleet.optim.Adam(net())}, folder)
    with pytest.raises(fleet.Error, match="the name 'a/b' of an optimizer"):
        fleet.Snapshots({"a/b": fleet.distributed_optimizer(fleet.optim.SGD(net()))}, folder)


def test_values_keep_their_type(tmp_path):
    values = {"best": 0}
    snapshots = one(snapshot_dir=str(tmp_path), values=values)
    values["best"] = 0.5
    with pytest.raises(fleet.UsageError, match="the value 'best' is float now, and was of another type"):
        snapshots.save()
    values["best"] = 2
    snapshots.save()
    values.clear()
    with pytest.raises(fleet.UsageError, match="'best' is no longer in values"):
        snapshots.save()
    values["best"] = 2
    snapshots.finish()


def test_other_values_than_those_of_the_snapshot_are_refused(tmp_path):
    snapshots = one(snapshot_dir=str(tmp_path), values={"best": 1.0})
    snapshots.save()
    snapshots.finish()
    del snapshots
    with pytest.raises(fleet.Error, match="best"):
        one(snapshot_dir=str(tmp_path), values={"worst": 1.0})
