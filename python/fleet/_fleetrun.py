# SPDX-License-Identifier: Apache-2.0
"""`fleetrun train.py`: starts the launcher that lies in this package, with this Python for scripts."""

import os
import sys

import torch


def main():
    package = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.dirname(sys.executable)
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", os.defpath)
    libraries = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    if not os.path.isdir(os.path.join(package, "..", "torch", "lib")):  # where the launcher looks: torch is elsewhere
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = libraries + (os.pathsep + before if before else "")
    os.execv(os.path.join(package, "bin", "fleetrun"), ["fleetrun", *sys.argv[1:]])
