# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the C++ library."""


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
