"""Two changes to SGLang's all-reduce kernels, which are compiled for ROCm even where RCCL is used instead. Pure."""

from __future__ import annotations

import re

from serve.patches.model import Facts, Look, Patch, Place, Status, mark, unknown

_SOURCES = ("csrc/allreduce/custom_all_reduce.cuh", "csrc/allreduce/custom_all_reduce_hip.cuh")
_REBUILD = "Build and install sgl_kernel again."

STORE_ID = "gfx1100-allreduce-store"
_LOAD_BUILTIN = "__builtin_amdgcn_global_load_b128"
_STORE_BUILTIN = "__builtin_amdgcn_global_store_b128"
_NOT_RDNA3 = "!defined(__GFX11__) && "
_IF = re.compile(r"^(?P<hash>[ \t]*#[ \t]*if[ \t]+)(?P<condition>(?:[^\\\n]|\\\r?\n)*)", re.MULTILINE)
_PLAIN_CONDITION = f"defined(__has_builtin) && __has_builtin({_LOAD_BUILTIN}) && __has_builtin({_STORE_BUILTIN})"
_NAMES_AN_ARCH = re.compile(r"__(gfx|GFX)\d+")

RESTRICT_ID = "gfx1100-restrict-rank-data"
_RANK_DATA = re.compile(r"^[ \t]*struct\s+__align__\(16\)\s+RankData\s*\{(?P<body>[^{}]*)\};", re.MULTILINE)
_QUALIFIED = re.compile(r"(?P<before>(?:const\s+)?void\s*\*)\s*__restrict__(?P<after>\s+ptrs\[8\];)")
_UNQUALIFIED = re.compile(r"(?:const\s+)?void\s*\*\s*ptrs\[8\];")
_COMMENT = re.compile(r"//[^\n]*")


def look_at_store(text: str, _facts: Facts) -> Look:
    """Whether the 128-bit stores by builtin are kept from RDNA3."""
    marked = mark(STORE_ID) in text
    if _STORE_BUILTIN not in text and not marked:
        return Look(status=Status.NOT_APPLICABLE, detail="has no 128-bit stores by builtin")
    gates = [found for found in _IF.finditer(text) if _STORE_BUILTIN in found["condition"]]
    if len(gates) != 1:
        return unknown(f"one #if that asks for {_STORE_BUILTIN}", f"{len(gates)} of them")
    condition = _one_line(gates[0]["condition"])
    if marked:
        if condition == _NOT_RDNA3 + _PLAIN_CONDITION:
            return Look(status=Status.APPLIED, detail="RDNA3 takes the path without the builtins")
        return unknown("our mark with our condition below it", f"the mark, and #if {condition}")
    if _NAMES_AN_ARCH.search(condition):
        return Look(status=Status.FIXED_UPSTREAM, detail=f"the architecture is asked for: #if {condition}")
    if condition != _PLAIN_CONDITION:
        return unknown(f"#if {_PLAIN_CONDITION}", f"#if {condition}")
    comment = f"// {mark(STORE_ID)}: clang offers the builtins for RDNA3 without being able to compile them"
    at = gates[0].start()
    condition_at = gates[0].start("condition")
    patched = text[:at] + comment + _newline(text) + text[at:condition_at] + _NOT_RDNA3 + text[condition_at:]
    return Look(status=Status.NEEDED, detail="RDNA3 would take the path with the builtins", patched=patched)


def look_at_rank_data(text: str, _facts: Facts) -> Look:
    """Whether ``RankData`` can be copied: not with ``__restrict__`` on its array of pointers."""
    marked = mark(RESTRICT_ID) in text
    if "RankData" not in text and not marked:
        return Look(status=Status.NOT_APPLICABLE, detail="has no RankData")
    structs = list(_RANK_DATA.finditer(text))
    if _is_split_by_platform(text, structs):
        return Look(status=Status.FIXED_UPSTREAM, detail="ROCm has a RankData of its own, without __restrict__")
    if len(structs) != 1:
        return unknown("one struct RankData, or one for ROCm and one for others", f"{len(structs)} of them")
    body = _COMMENT.sub("", structs[0]["body"]).strip()
    if _UNQUALIFIED.fullmatch(body):
        if marked:
            return Look(status=Status.APPLIED, detail="the array of pointers is not __restrict__")
        return Look(status=Status.FIXED_UPSTREAM, detail="the array of pointers is not __restrict__ any more")
    qualified = _QUALIFIED.fullmatch(body)
    if qualified is None or marked or structs[0]["body"].strip() != body:
        return unknown("const void* __restrict__ ptrs[8]; alone in RankData", body or "an empty struct")
    start, end = structs[0].span("body")
    line = f"{qualified['before']}{qualified['after']}  // {mark(RESTRICT_ID)}"
    patched = text[:start] + structs[0]["body"].replace(body, line)
    if "\n" not in structs[0]["body"]:
        patched += _newline(text)
    return Look(
        status=Status.NEEDED, detail="the array of pointers is __restrict__ for ROCm too", patched=patched + text[end:]
    )


def _is_split_by_platform(text: str, structs: list[re.Match[str]]) -> bool:
    """``#ifdef USE_ROCM``, a struct without the qualifier, ``#else``, one with it, ``#endif``."""
    if len(structs) != 2:
        return False
    rocm, others = structs
    return (
        text[: rocm.start()].rstrip().endswith("#ifdef USE_ROCM")
        and text[rocm.end() : others.start()].strip() == "#else"
        and text[others.end() :].lstrip().startswith("#endif")
        and _UNQUALIFIED.fullmatch(rocm["body"].strip()) is not None
    )


def _one_line(condition: str) -> str:
    return " ".join(condition.replace("\\\r\n", " ").replace("\\\n", " ").split())


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


STORE = Patch(
    id=STORE_ID,
    title="all-reduce: no 128-bit load and store builtins on RDNA3",
    why=(
        "The all-reduce takes 128-bit accesses by builtin wherever clang says it has the builtins. For gfx11 clang may "
        "say so and then end with 'needs target feature': the file does not compile. The path without them is in the "
        "same file."
    ),
    evidence=(
        "field: 2x RX 7900 XTX on a gfx1100 fork",
        "RCCL, whose code this is, asks for gfx942, gfx950 or gfx1250 first (rccl_ptr.h)",
        "ROCm/llvm-project #1004 brought the builtins for gfx94x, #979 for the others later",
    ),
    versions="SGLang sources with the cache-bypassing all-reduce; decided by their shape",
    place=Place.KERNEL_SOURCE,
    targets=_SOURCES,
    look=look_at_store,
    afterwards=_REBUILD,
)

RESTRICT = Patch(
    id=RESTRICT_ID,
    title="all-reduce: RankData's array of pointers without __restrict__",
    why=(
        "clang cannot write the assignment of a struct whose array of pointers is __restrict__, and "
        "std::vector<RankData> needs it: 'cannot initialize a parameter of type void * with an rvalue of type "
        "void *__restrict (*)[8]'. The qualifier brings nothing: the pointers are copied before use."
    ),
    evidence=(
        "field: 2x RX 7900 XTX on a gfx1100 fork",
        "flashinfer-ai/flashinfer #1468: the same struct, the same error",
        "SGLang's hipified copy has a RankData without it for ROCm",
    ),
    versions="SGLang sources that share one RankData between CUDA and ROCm; decided by their shape",
    place=Place.KERNEL_SOURCE,
    targets=_SOURCES,
    look=look_at_rank_data,
    afterwards=_REBUILD,
)
