"""What SGLang's ``setup_rocm.py`` would decide for one GPU architecture, told from its syntax tree without running it.

Only constants, comparisons, choices and sums of the target's name are followed: what the script really has. Pure.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import msgspec

_TARGET = "amdgpu_target"
_BUDGET = "topk_dynamic_smem_bytes"
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``problem`` says why nothing is known; the other fields then mean nothing."""

    problem: str | None = None
    allowed: bool = False
    """The script does not end for this architecture."""
    has_budget: bool = False
    budget_bytes: int | None = None
    """Dynamic shared memory of the TopK kernels; ``None``: there is none, or it cannot be told."""


class _Unclear(Exception):
    """The script has an expression that is not followed here."""


def verdict(text: str, arch: str) -> Verdict:
    """Raises nothing."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError) as error:
        return Verdict(problem=f"it is not Python: {error}")
    names: dict[str, Any] = {}
    gates = 0
    allowed = True
    has_budget = False
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                has_budget |= name == _BUDGET
                names.pop(name, None)
                if (found := _value(value, {**names, _TARGET: arch})) is not None:
                    names[name] = found
            case ast.If(test=test) if _reads_target(test) and _ends(statement.body):
                refused = _value(test, {**names, _TARGET: arch})
                if refused is None:
                    return Verdict(problem="an allowlist that cannot be read")
                gates += 1
                allowed &= not refused
            case _:
                pass
    if not gates:
        return Verdict(problem=f"no 'if {_TARGET} ...' that ends the build")
    budget = names.get(_BUDGET)
    return Verdict(allowed=allowed, has_budget=has_budget, budget_bytes=budget if isinstance(budget, int) else None)


def _reads_target(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == _TARGET for node in ast.walk(test))


def _ends(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Attribute) and node.attr == "exit")
        for statement in body
        for node in ast.walk(statement)
    )


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    try:
        return _evaluate(expression, names)
    except (_Unclear, TypeError, ZeroDivisionError, OverflowError, MemoryError):
        return None


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return tuple(_evaluate(part, names) for part in parts)
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            return _evaluate(then if _evaluate(test, names) else otherwise, names)
        case ast.BinOp(left=left, op=how, right=right) if type(how) in _BINARY:
            first, second = _evaluate(left, names), _evaluate(right, names)
            if isinstance(how, ast.Mult | ast.FloorDiv) and not (isinstance(first, int) and isinstance(second, int)):
                raise _Unclear
            return _BINARY[type(how)](first, second)
        case ast.Compare(left=left, ops=[how], comparators=[right]) if type(how) in _COMPARE:
            return _COMPARE[type(how)](_evaluate(left, names), _evaluate(right, names))
        case _:
            raise _Unclear
