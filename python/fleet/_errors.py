# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the C++ library."""

import sys


class Error(RuntimeError):
    """A mistake that can be mended, or a failure. `fix` says what to do."""

    @property
    def fix(self):
        _, _, fix = str(self).rpartition("\n  fix: ")
        return fix if "\n  fix: " in str(self) else ""


class UsageError(Error):
    """What was asked for cannot be run: every new try would fail as well."""


class Stopped(SystemExit):
    """The training was asked to stop, and its snapshot is on the disk: exit code 143."""


Error.__module__ = UsageError.__module__ = Stopped.__module__ = "fleet"


def _chain(before):
    """An uncaught UsageError ends a program as it ends those in C++: with its message and
    exit code 2, after which fleetrun does not try again. Interactive sessions continue."""

    def hook(kind, value, traceback):
        if not issubclass(kind, UsageError) or hasattr(sys, "ps1") or sys.flags.interactive:
            return before(kind, value, traceback)
        sys.stdout.flush()
        print(f"error: {value}", file=sys.stderr, flush=True)
        sys.exit(2)

    return hook


sys.excepthook = _chain(sys.excepthook)
