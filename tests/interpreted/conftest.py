"""Triton kernels on CPU tensors by Triton's interpreter, which has to be chosen before the import.

tests/unit/ops/test_triton.py runs this folder in a process of its own; elsewhere it is ignored.
"""

import os
from types import SimpleNamespace
from typing import Any

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import interpreter

    patch_language = interpreter._patch_lang
    patched: set[int] = set()

    def patch_language_once(function: Any) -> Any:
        """Make Triton's language that of the interpreter, and leave it so.

        The interpreter does that in every call of every function, which is half of its time.
        """
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch_language(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_language_once
else:
    collect_ignore_glob = ["test_*.py"]
