"""The typed model of an engine profile: everything about one engine on one kind of machine that is decided before it
starts.

One TOML file a profile, in ``serve/profiles`` or the owner's own. A field left out (``None``) leaves the engine's own
default alone, so that a profile says only what somebody decided; the reason stands as a comment beside the value in
the file. Field names are SGLang's where it has one; figures are those of one rank where SGLang's are.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)+$")]
Flag = Annotated[str, msgspec.Meta(pattern=r"^--[a-z0-9][a-z0-9-]*$")]
FlagValue = str | int | float | bool

_RELEASE = re.compile(r"\d+(\.\d+)*")


class EngineKind(StrEnum):
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    """The embedded llama.cpp server."""
    UPSTREAM = "upstream"
    """An OpenAI-compatible server that runs already."""


class Platform(StrEnum):
    """What the engine's kernels run on."""

    ROCM = "rocm"
    CUDA = "cuda"
    CPU = "cpu"


class Dtype(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class KvDtype(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class WritePolicy(StrEnum):
    """When a page goes from GPU to host memory."""

    WRITE_THROUGH = "write_through"
    """At once."""
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    """On its second use."""
    WRITE_BACK = "write_back"
    """When it is evicted from the GPU."""


class IoBackend(StrEnum):
    DIRECT = "direct"
    KERNEL = "kernel"


class HostLayout(StrEnum):
    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"


class StorageBackend(StrEnum):
    FILE = "file"


class PrefetchPolicy(StrEnum):
    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


class MambaStrategy(StrEnum):
    AUTO = "auto"
    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


class PriorityOrder(StrEnum):
    """Which of two request priorities the engine serves first."""

    HIGHER_FIRST = "higher_first"
    LOWER_FIRST = "lower_first"
    OFF = "off"
    """The engine's switch is off: it ignores priorities."""


class Recipe(StrEnum):
    """How the engine gets onto the machine."""

    NONE = "none"
    """Nothing to install."""
    CUDA = "cuda"
    """SGLang with its own dependencies from PyPI."""
    ROCM_GFX1100 = "rocm-gfx1100"
    """A pinned ROCm torch, SGLang without dependencies, its kernels built for gfx1100."""
    CPU = "cpu"
    """SGLang from PyPI on a CPU torch, with our stand-in kernels."""


class OnL3Full(StrEnum):
    """What becomes of an L3 folder over its limits."""

    EVICT = "evict"
    """The files that were read longest ago go."""
    DETACH = "detach"
    """Nothing is deleted: the owner is asked to switch L3 off."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a profile."""


def version_key(version: str) -> tuple[int, ...]:
    """A version for comparing; what follows the numbers (``.dev1+g561c8f3``, ``.post2``) is left out."""
    found = _RELEASE.match(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class Versions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engine versions the profile is for."""

    oldest: VersionText = "0.0"
    """The first one."""
    newest: VersionText = "0.0"
    """The last one that was looked at."""
    install: VersionText | None = None
    """The one to install and to write commands for; ``None`` means ``newest``."""

    @property
    def chosen(self) -> str:
        return self.install or self.newest

    def covers(self, version: str) -> bool:
        return version_key(self.oldest) <= version_key(version) <= version_key(self.newest)


class Hardware(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine the figures are for. The doctor compares, the plan calculates."""

    platform: Platform = Platform.CPU
    arch: str | None = None
    """GPU architecture as the toolchain names it: ``gfx1100``, ``sm_89``; ``None``: any."""
    gpus: Count = 0
    """GPUs used."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of one GPU."""
    host_memory_gib: PositiveFloat | None = None
    """RAM that the host pools were sized for."""


class Install(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    recipe: Recipe = Recipe.NONE
    patches: tuple[Text, ...] = ()
    """Patches that must be applied, by name (``governor patch list``)."""


class Model(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None
    """Weights: a folder, a hub name, or for llama.cpp what ``governor up --model`` takes. ``None``: the owner names
    them, or the engine has its own."""
    revision: str | None = None
    """Commit of the weights on the hub. Part of the L3 folder's identity."""
    served_name: str | None = None
    """Name in ``/v1/models``."""
    context_length: PositiveInt | None = None
    """Window in tokens: prompt + output of one turn."""
    quantization: str | None = None
    """``None``: as the weights' own configuration says."""
    dtype: Dtype | None = None
    """Of weights and activations."""
    kv_cache_dtype: KvDtype | None = None
    chat_template: str | None = None
    """Name or path; ``None``: the one in the weights."""
    hybrid: bool = False
    """Has gated-delta-net (Mamba) layers next to attention: a prefix can be resumed only where a state was stored."""
    lora: tuple[Text, ...] = ()
    """``NAME=PATH`` of each adapter."""


class Parallel(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tp_size: PositiveInt = 1
    """Tensor parallelism: ranks that share each layer. Host pools and L3 caps are per rank."""
    dp_size: PositiveInt = 1
    """Replicas with caches of their own."""
    nnodes: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    """Machines; more than one is not supported."""


class Memory(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mem_fraction_static: Fraction | None = None
    """Share of GPU memory for weights and cache pools."""
    max_total_tokens: PositiveInt | None = None
    """KV tokens on the GPU; ``None``: what fits."""
    max_running_requests: PositiveInt | None = None
    """Requests decoding together. Each holds Mamba state slots."""
    max_queued_requests: PositiveInt | None = None
    chunked_prefill_size: PositiveInt | None = None
    """Tokens prefilled at once. A hybrid model stores one state a chunk."""
    max_prefill_tokens: PositiveInt | None = None
    page_size: PositiveInt | None = None
    """Tokens in a page: the grain of matching, and with L3 of files."""


class HiCache(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """L2: host memory."""

    enabled: bool = False
    ratio: PositiveFloat | None = None
    """Host pool over device pool, for KV and Mamba states alike."""
    size_gb: PositiveInt | None = None
    """Host pool in 10^9 bytes **per rank**, KV and Mamba together; wins over ``ratio``."""
    write_policy: WritePolicy | None = None
    io_backend: IoBackend | None = None
    mem_layout: HostLayout | None = None


class L3(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """L3: pages and states on disk."""

    backend: StorageBackend | None = None
    """``None``: no L3."""
    dir: str | None = None
    """Parent folder; each identity has a folder of its own inside. ``None``: ``l3`` in the governor's home."""
    max_size_gb: PositiveInt | None = None
    """Cap over **all** ranks in 10^9 bytes; the engine is given each rank's share."""
    min_free_gb: Count = 20
    """Free space that is always left on the disk."""
    max_files: PositiveInt = 1_000_000
    """A folder with more files than this is slow to list and may run out of index entries before space."""
    on_full: OnL3Full = OnL3Full.EVICT
    prefetch_policy: PrefetchPolicy | None = None
    extra_config: dict[str, FlagValue] = {}
    """Further keys for the storage backend, such as ``prefetch_threshold``."""


class Mamba(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """State slots of a hybrid model."""

    radix_cache_strategy: MambaStrategy | None = None
    max_cache_size: PositiveInt | None = None
    """State slots on the GPU; wins over ``full_memory_ratio``."""
    full_memory_ratio: PositiveFloat | None = None
    """State memory over KV memory."""
    track_interval: PositiveInt | None = None
    """Tokens between snapshots while decoding."""
    max_states_per_path: int | None = None
    ssm_dtype: Dtype | None = None
    conv_dtype: Dtype | None = None
    """SGLang takes it from the environment."""


class Speculative(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    algorithm: str | None = None
    """``NEXTN``, ``DFLASH``, ...; ``None``: off."""
    draft_model_path: str | None = None
    """``None``: the draft layers are in the weights."""
    num_steps: PositiveInt | None = None
    eagle_topk: PositiveInt | None = None
    num_draft_tokens: PositiveInt | None = None


class Scheduling(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str | None = None
    """Order of the engine's own queue."""
    priority: PriorityOrder = PriorityOrder.OFF
    """The engine's priority switch and its direction."""
    preemption: bool = True
    """With priorities: whether a waiting request may push out a running one."""
    default_priority: int = 0
    """With priorities: what a request without one has."""
    conservativeness: PositiveFloat | None = None
    """Above 1: fewer retractions, fewer requests at once."""
    prefill_decode_interval: Count | None = None
    """Decode rounds forced after each prefill."""
    max_consecutive_prefill_batches: PositiveInt | None = None
    """The gfx1100 fork's flag of the same purpose. Translated for engines that have the one above."""
    mixed_chunk: bool | None = None
    """Prefill and decode in one batch."""
    waiting_timeout_s: PositiveFloat | None = None
    """The engine aborts a request that waited this long; environment only."""
    running_timeout_s: PositiveFloat | None = None


class Kernels(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    attention_backend: str | None = None
    linear_attn_backend: str | None = None
    cuda_graph: bool | None = None
    """``False`` switches graphs off for prefill and decode."""
    cuda_graph_max_bs: PositiveInt | None = None
    """Largest decode batch that is captured."""
    custom_all_reduce: bool | None = None
    overlap_schedule: bool | None = None


class Parsers(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reasoning: str | None = None
    tool_call: str | None = None


class Reporting(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine tells the governor. All on: without them it is blind."""

    metrics: bool = True
    cache_report: bool = True
    """``cached_tokens`` in usage."""
    kv_events: bool = True
    """ZMQ events of what is stored where."""
    plugin: bool = True
    """Our plugin inside the engine."""
    decode_log_interval: PositiveInt | None = None
    """Decode steps between two flushes of metrics and KV events."""
    sleep_on_idle: bool | None = None
    watchdog_timeout_s: PositiveFloat | None = None
    """A forward pass longer than this ends the engine."""


class LlamaCpp(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slots: PositiveInt = 2
    """Turns decoded at once, each with a whole window."""
    cache_ram_mib: Count = 1024
    """L2: host memory for prompts that have left their slot."""


class Profile(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine on one kind of machine."""

    name: str = ""
    """The file's stem; not a key of the file."""
    base: str | None = None
    """A shipped profile under this file; tables merge key by key."""
    summary: Text
    """One line for ``governor engine profiles``."""
    engine: EngineKind
    versions: Versions = Versions()
    hardware: Hardware = Hardware()
    install: Install = Install()
    model: Model = Model()
    parallel: Parallel = Parallel()
    memory: Memory = Memory()
    hicache: HiCache = HiCache()
    l3: L3 = L3()
    mamba: Mamba = Mamba()
    speculative: Speculative = Speculative()
    scheduling: Scheduling = Scheduling()
    kernels: Kernels = Kernels()
    parsers: Parsers = Parsers()
    reporting: Reporting = Reporting()
    llamacpp: LlamaCpp = LlamaCpp()
    accept_unsafe: tuple[Text, ...] = ()
    """Known dangers that the owner takes on, by id (``serve/unsafe.py``); the command is written all the same."""
    environment: dict[Text, str] = {}
    """Set for the engine's process; wins over what the profile's other keys imply."""
    flags: dict[Flag, FlagValue] = {}
    """Further flags as the engine spells them. ``true`` is a bare flag, ``false`` leaves it out."""
