# SPDX-License-Identifier: Apache-2.0
import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

from zoo_table import ZooTable


def pytest_addoption(parser):
    parser.addoption("--zoo", choices=["all", "few"], default="all", help="models of the zoo: all, or one of each kind")
    parser.addoption("--wheel", action="store_true", help="build a wheel and import it, which compiles the library once more")
    parser.addoption("--zoo_table", metavar="FILE", help="where to write the zoo's table")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    gc.collect()


@pytest.fixture(scope="session")
def zoo_table(request):
    table = ZooTable()
    yield table
    if file := request.config.getoption("--zoo_table"):
        table.write(file)
