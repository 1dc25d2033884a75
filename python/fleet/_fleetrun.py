# SPDX-License-Identifier: Apache-2.0
"""`fleetrun train.py`: starts the launcher that lies in this package, with this Python for scripts."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(__file__), "bin", "fleetrun")
    folder = os.path.dirname(sys.executable)
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execv(program, ["fleetrun", *sys.argv[1:]])
