// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet::python {

// Fleet prints to file descriptors. Where sys.stdout or sys.stderr is something else (a notebook,
// pytest, contextlib.redirect_stdout), lines are kept and written there by a thread that holds the
// GIL: a C++ thread that waited for it while it holds a lock could wait for ever.

/// With the GIL: whether lines are to be kept from now on.
void look_at_streams();

/// With the GIL: writes what was kept.
void flush_lines();

}  // namespace fleet::python
