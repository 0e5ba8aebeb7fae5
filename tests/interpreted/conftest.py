"""Triton kernels on CPU tensors by Triton's interpreter, which has to be chosen before the import.

tests/unit/ops/test_triton.py runs this folder in a process of its own; elsewhere it is ignored.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
