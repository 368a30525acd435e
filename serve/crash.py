"""Why an engine died, read off its last words: the reason in plain words and the known cure.

Pure. The signs are data, so that a further one is one entry; they stand apart from the supervisor, which acts on a
crash in the same way whatever its reason. The wordings are those of SGLang 0.5.23, PyTorch, the CUDA and ROCm
runtimes, Hugging Face Hub and Linux.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

import msgspec

_SHOWN_CHARS = 200


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """A reason that was recognised."""

    id: str
    reason: str
    cure: str
    line: str = ""
    """The line of the log that told it; empty where the exit status did."""
    stays: bool = False
    """Another start in the same way ends in the same way."""

    def __str__(self) -> str:
        said = f" ({self.line[:_SHOWN_CHARS]})" if self.line else ""
        return f"{self.reason}{said}. {self.cure}"


class _Sign(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    pattern: re.Pattern[str]
    """Searched for in each line."""
    reason: str
    cure: str
    stays: bool = False


def _sign(id: str, pattern: str, reason: str, cure: str, *, stays: bool = False) -> _Sign:  # noqa: A002
    return _Sign(id=id, pattern=re.compile(pattern), reason=reason, cure=cure, stays=stays)


_OOM_CURE = (
    "Lower memory.mem_fraction_static or kernels.cuda_graph_max_bs, and see that nothing else uses the GPU; "
    "`governor plan` tells what fits."
)
_HOST_OOM_CURE = "Lower hicache.size_gb (it counts for each rank) or hicache.ratio; `governor plan` tells what fits."
_SHM_REASON = "the shared memory of the machine or container is full (/dev/shm)"
_SHM_CURE = "Free it, or give a container more (--shm-size, or --ipc=host)."
_INSTALL_CURE = "Mend the installation: governor engine install --check --profile NAME."

SIGNS = (
    # An error's own line stands at the left edge; SGLang also logs import errors of models that nobody asked for.
    _sign(
        "unknown-flag",
        r"error: (unrecognized arguments|argument .*invalid|the following arguments are required)",
        "this SGLang does not take a flag of the command",
        "Set the profile's versions, or look at `governor engine command --check --profile NAME`.",
        stays=True,
    ),
    _sign(
        "kernel-missing",
        r"^(ImportError|ModuleNotFoundError|OSError): .*(sgl_kernel|get_device_accessible_ptr|undefined symbol)"
        r"|no kernel image is available|hipErrorNoBinaryForGpu|invalid device function|Unable to find code object",
        "a GPU kernel is missing or was built for another GPU",
        _INSTALL_CURE,
        stays=True,
    ),
    _sign(
        "package-missing",
        r"^(ModuleNotFoundError: No module named|ImportError: cannot import name)|: No module named ['\"]?sglang",
        "a Python package is missing in the engine's environment",
        _INSTALL_CURE,
        stays=True,
    ),
    _sign(
        "no-gpu",
        r"CUDA driver version is insufficient|Found no NVIDIA driver|No (CUDA|HIP) GPUs are available"
        r"|no (CUDA|ROCm)-capable device|hipErrorNoDevice|Unable to open /dev/kfd",
        "no GPU can be used: driver, permission or visibility",
        "See `governor doctor`; on ROCm the user must be in the groups video and render.",
        stays=True,
    ),
    _sign(
        "gpu-memory",
        r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|hipErrorOutOfMemory|cudaErrorMemoryAllocation"
        r"|torch(\.cuda)?\.OutOfMemoryError|Triton Error \[(CUDA|HIP)\]: out of memory"
        r"|(Prefill|Decode) out of memory|alloc_req_slots runs out of memory",
        "the GPU's memory is full",
        _OOM_CURE,
    ),
    _sign(
        "gpu-memory-plan",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "no GPU memory is left for the cache after the weights",
        "Raise memory.mem_fraction_static, or take smaller weights or more ranks; `governor plan` tells what fits.",
        stays=True,
    ),
    _sign(
        "mamba-slots",
        r"Can not alloc (int8 )?mamba",
        "the state slots of the hybrid model ran out",
        "Raise mamba.max_cache_size or lower memory.max_running_requests (SGLang issues 36770 and 37619).",
    ),
    _sign(
        "host-memory",
        r"Not enough host memory|DefaultCPUAllocator: can't allocate memory|^MemoryError\b|Cannot allocate memory"
        r"|(cuda|hip)Host(Register|Alloc|Malloc)\w* (failed|error)|failed to allocate host memory",
        "the machine's memory does not hold the host pools",
        _HOST_OOM_CURE,
    ),
    _sign(
        "shared-memory",
        r"unable to (open|allocate) shared memory|No space left on device: '/dev/shm|/dev/shm.*No space left",
        _SHM_REASON,
        _SHM_CURE,
    ),
    _sign(
        "disk-full",
        r"\[Errno 28\]|No space left on device",
        "a disk is full",
        "Free space where the weights, the cache folder or L3 lie; l3.max_size_gb and l3.min_free_gb bound L3.",
    ),
    _sign(
        "open-files",
        r"\[Errno 24\]|Too many open files",
        "the limit of open files was reached",
        "Raise it: ulimit -n 65536, or LimitNOFILE in the unit (`governor engine systemd`).",
    ),
    _sign(
        "illegal-access",
        r"illegal memory access|hipErrorIllegalAddress|cudaErrorIllegalAddress|Memory access fault by GPU"
        r"|HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION|device-side assert triggered|misaligned address",
        "a GPU kernel touched memory that is not its own",
        "It is a fault of the kernel, not of the memory. See `governor doctor` for known-bad combinations of "
        "kernels.attention_backend, hicache.io_backend, model.kv_cache_dtype and speculation on this GPU, and switch "
        "off one at a time.",
    ),
    _sign(
        "gpu-hang",
        r"HW Exception by GPU|GPU Hang|hipErrorLaunchFailure|unspecified launch failure|GPU is lost|fallen off the bus",
        "the GPU hangs or was lost",
        "The governor never resets a GPU. End what uses it, see the kernel's log (dmesg), and restart the machine if "
        "it stays.",
    ),
    _sign(
        "collective",
        r"(NCCL|RCCL) error|nccl(UnhandledCuda|System|Internal|Remote|InvalidUsage)\w*Error|DistBackendError"
        r"|Watchdog caught collective operation timeout|Connect to .*NCCL",
        "the ranks lost each other (NCCL or RCCL)",
        "See what the first rank to fail said in the log. If all were sound: NCCL_P2P_DISABLE=1 in the profile's "
        "environment where the PCIe slots have no peer access, or kernels.custom_all_reduce = false.",
    ),
    _sign(
        "engine-watchdog",
        r"[Ww]atchdog timeout",
        "a step of the engine took longer than its own watchdog allows",
        "If the step was sound (a kernel was compiled for the first time): raise reporting.watchdog_timeout_s.",
    ),
    _sign(
        "port-taken",
        r"\[Errno 98\]|[Aa]ddress already in use|^ValueError: .*port \d+ is (not available|already in use)"
        r"|Port is already in use",
        "a port that the engine needs is taken",
        "End what listens there (`ss -ltnp`), or start again: the governor takes another port.",
    ),
    _sign(
        "weights-gated",
        r"GatedRepoError|Access to model .* is restricted|401 Client Error",
        "the weights need a login at the hub",
        "Accept the model's terms and log in (hf auth login), or give a folder: --model DIR.",
        stays=True,
    ),
    _sign(
        "weights-missing",
        r"is not a local folder and is not a valid model identifier|RepositoryNotFoundError|LocalEntryNotFoundError"
        r"|OfflineModeIsEnabled|Cannot find any model weights|does not appear to have a file named"
        r"|Can't load (the configuration|tokenizer)|^HFValidationError|\.safetensors.*(No such file|not found)",
        "the weights or a file of theirs cannot be found",
        "Give their folder: governor up --profile NAME --model DIR, and see that the download was complete.",
        stays=True,
    ),
    _sign(
        "weights-broken",
        r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|invalid magic|failed to load model",
        "the weights cannot be read",
        "Download them again: a file is incomplete or is no model.",
        stays=True,
    ),
    _sign(
        "window",
        r"context_length \(\d+\) is greater than the derived context_length",
        "the window is larger than the model was made for",
        "Lower model.context_length, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN = '1' in the profile's "
        "environment if the model is stretched on purpose.",
        stays=True,
    ),
    _sign(
        "file-missing",
        r"^FileNotFoundError: ",
        "a file that the engine was told to use does not exist",
        "Check the paths of the profile.",
        stays=True,
    ),
    _sign(
        "refused",
        r"^PermissionError: ",
        "the engine may not use a file or device",
        "Check owner and rights of what the line names.",
        stays=True,
    ),
)
"""In order of rank: of several in one log the first counts, so causes stand before what they cause."""

_WORKER_KILLED = re.compile(r"crashed with exit code -9\b")


def recognise(last_words: Sequence[str], *, returncode: int | None = None, oom_kills: int = 0) -> Crash | None:
    """The reason of a crash; ``None`` if nothing known is in it.

    ``last_words`` are the last lines of this run, oldest first; ``returncode`` is negative for a signal; ``oom_kills``
    counts the processes that the kernel ended on this machine for lack of memory while the engine ran.
    """
    killed = returncode == -signal.SIGKILL
    worker = next((line for line in last_words if _WORKER_KILLED.search(line)), None)
    if oom_kills and (killed or worker is not None):
        reason = "the kernel ended it because the machine's memory was full"
        return Crash(id="oom-killer", reason=reason, cure=_HOST_OOM_CURE, line=worker or "")
    for sign in SIGNS:
        line = next((line for line in last_words if sign.pattern.search(line)), None)
        if line is not None:
            return Crash(id=sign.id, reason=sign.reason, cure=sign.cure, line=line.strip(), stays=sign.stays)
    if worker is not None:
        reason = "a worker of it was killed from outside, by hand or for lack of memory"
        return Crash(id="worker-killed", reason=reason, cure="The kernel's log tells (dmesg).", line=worker.strip())
    if returncode == -signal.SIGBUS:
        return Crash(id="shared-memory", reason=_SHM_REASON, cure=_SHM_CURE)
    if returncode == -signal.SIGILL:
        reason = "this CPU lacks an instruction that the engine was built for (AVX2, BMI2, AVX-512)"
        return Crash(id="cpu", reason=reason, cure="Take a build for this CPU, or another machine.", stays=True)
    return None
