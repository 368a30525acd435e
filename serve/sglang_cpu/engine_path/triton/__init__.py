"""Stand-in for Triton, which SGLang imports everywhere and a CPU never calls. The real one is 1 GB.

SGLang has such a stand-in for macOS (``sglang/_platform_stubs.py``), installed by one ``if`` statement inside a
function that checks for macOS. This module runs the body of that
statement, which puts SGLang's module in this one's place.

Raises :class:`ImportError` when SGLang is not there or no longer has the statement.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_MODULE = "governor_triton_stubs"
_FUNCTION = "install_platform_stubs"
_CONDITION = "'triton' not in sys.modules"


def _stubs() -> tuple[ModuleType, Path]:
    """SGLang's module, loaded by its path: importing ``sglang`` would import Triton."""
    for entry in sys.path:
        file = Path(entry) / "sglang" / "_platform_stubs.py"
        spec = importlib.util.spec_from_file_location(_MODULE, file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module, file
    raise ImportError("no sglang whose stand-in for Triton could be used")


def _body(file: Path) -> ast.Module:
    for function in ast.parse(file.read_text(), str(file)).body:
        if isinstance(function, ast.FunctionDef) and function.name == _FUNCTION:
            for statement in function.body:
                if isinstance(statement, ast.If) and _CONDITION in ast.unparse(statement.test):
                    return ast.Module(body=statement.body, type_ignores=[])
    raise ImportError(f"{file} has no stand-in for Triton any more")


_module, _file = _stubs()
exec(compile(_body(_file), str(_file), "exec"), _module.__dict__)  # noqa: S102 - SGLang's own code
