# SPDX-License-Identifier: Apache-2.0
"""Sees that the installed torch is the one that the library was built for."""

NEEDED = "2.15"

try:
    import torch
except ImportError as error:
    raise ImportError(f"fleet needs PyTorch {NEEDED}, which is not installed: pip install 'torch=={NEEDED}.*'") from error

if torch.__version__.split(".")[:2] != NEEDED.split("."):
    raise ImportError(
        f"fleet was built for PyTorch {NEEDED}, and PyTorch {torch.__version__} is installed: pip install 'torch=={NEEDED}.*'"
    )
