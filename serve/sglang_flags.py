"""Which command line flags SGLang 0.5.17 to 0.5.23 know, as far as the versions differ. Data; decides nothing.

Read off the argument declarations of the seven wheels (``server_args.py``, ``arg_groups/fields``). A flag not named
here is in all of them or in none: that the installed engine's own parser knows it is asked by
:mod:`serve.argcheck`.
"""

from __future__ import annotations

import msgspec

from serve.profile.model import version_key

FIRST_KNOWN = "0.5.17"
LAST_KNOWN = "0.5.23"

_ADDED = {
    "0.5.18": """
        --allowed-media-domains --c128-page-size --disaggregation-decode-retraction-backup
        --enable-tp-lm-head-all-to-all --expert-balancedness-report-mode --http2-max-concurrent-streams
        --image-processor-backend --language-model-only --media-url-max-file-size-mb --mlx-enable-sampling
        --mm-global-cache-backend --mm-preprocess-cache-size-mb --speculative-draft-kv-cache-dtype
        --startup-weight-load-mode --trust-mm-content-hashes
    """,
    "0.5.19": """
        --deepep-v2-mode --dsv4-prefill-backend --enable-dense-mlp-attn-tp --enable-layernorm-sp
        --enable-lean-attention --enable-shared-experts-attn-tp --enable-w4a4-mxfp4-megamoe
        --gated-launch-port --hicache-host-memory-mode --hicache-storage-prefetch-retry-max-attempts
        --hicache-storage-prefetch-retry-poll-interval --http2-initial-connection-window-size
        --load-publish-endpoint --prefill-decode-interval --speculative-dsa-topk-backend
    """,
    "0.5.20": """
        --dsv4-attn-backend --enable-response-store --enable-unified-cache-external-linker
        --flashinfer-a2a-dispatch-type --ple-offload-backend --ple-offload-dir --ple-offload-embedding
        --radix-eviction-policy-config --return-input-ids --return-output-ids --sampling-mask-max-tokens
        --speculative-domino-candidate-pool-size --unified-cache-external-linker-backend --uno-lora-path
    """,
    "0.5.21": """
        --boundary-reduction --constrained-json-max-whitespace-cnt --context-bucket
        --cuda-graph-max-seq-len-prefill --cuda-graph-prefill-max-context
        --disable-aiter-allreduce-fusion-in-decode --disable-aiter-allreduce-fusion-in-prefill
        --disaggregation-decode-host-receive-threshold --disaggregation-enable-kv-checksum
        --enable-decoder-swa-bounded-replay --enable-encoder-swa-bounded-replay --enable-linker-mla-dedup
        --enable-pd-role-switch --grpc-response-timeout-secs --hicache-host-memory-fraction
        --otlp-service-name --prefill-kv-cache-dequant-dtype --shared-experts-tp-size
        --speculative-draft-sink-size --swa-prefix-tails --trust-request-chat-template
    """,
    "0.5.22": """
        --attention-data-parallel-size --attn-dp-size --disaggregation-decode-allocation-policy
        --dsa-triton-union --enable-dsa-fused-indexer --enable-kv-cache-sharding --enable-watermark
        --qsa-indexer-dtype --speculative-enable-w4a4-mxfp4-megamoe --speculative-use-block-verification
        --watermark-config
    """,
    "0.5.23": """
        --enable-amd-monokernel --enable-hicache --enable-http-worker-reuseport
        --enable-megamoe-for-layernorm-sp --enable-nvidia-megakernel --enable-paged-experts
        --enable-return-aux-hidden-states --monokernel-backend --paged-experts-num-resident
        --prefill-decode-interval-min-bs --return-aux-hidden-state-layer-ids
        --unified-cache-external-linker-config
    """,
}
"""By the version that brought them."""

_DROPPED = {
    "0.5.18": """
        --torchao-config
    """,
    "0.5.20": """
        --collect-tokens-histogram --cuda-graph-bs --cuda-graph-max-bs --disable-piecewise-cuda-graph
        --dsa-prefill-cp-mode --enable-breakable-cuda-graph --enable-dsa-prefill-context-parallel
        --enable-expert-distribution-metrics --enable-gdn-replayssm-spec
        --enable-nsa-prefill-context-parallel --enable-prefill-context-parallel
        --enforce-piecewise-cuda-graph --mamba-scheduler-strategy --nsa-decode-backend --nsa-prefill-backend
        --nsa-prefill-cp-mode --piecewise-cuda-graph-compiler --piecewise-cuda-graph-max-tokens
        --piecewise-cuda-graph-tokens --prefill-cp-mode --prefill-round-robin-balance
        --speculative-dflash-draft-window-size --stream-output
    """,
    "0.5.21": """
        --elastic-ep-rejoin --keep-mm-feature-on-device
    """,
    "0.5.22": """
        --cuda-graph-tc-compiler
    """,
    "0.5.23": """
        --speculative-skip-dp-mlp-sync
    """,
}
"""By the first version without them."""


class Renamed(msgspec.Struct, frozen=True):
    """What an old spelling is called now. Old and new stand side by side in the versions before the drop."""

    flag: str
    value: str | None = None
    """The value that a bare old flag stands for; ``None``: the value is passed on."""


RENAMED = {
    "--mamba-scheduler-strategy": Renamed("--mamba-radix-cache-strategy"),
    "--cuda-graph-max-bs": Renamed("--cuda-graph-max-bs-decode"),
    "--cuda-graph-bs": Renamed("--cuda-graph-bs-decode"),
    "--piecewise-cuda-graph-tokens": Renamed("--cuda-graph-bs-prefill"),
    "--piecewise-cuda-graph-max-tokens": Renamed("--cuda-graph-max-bs-prefill"),
    "--disable-piecewise-cuda-graph": Renamed("--cuda-graph-backend-prefill", "disabled"),
    "--enable-breakable-cuda-graph": Renamed("--cuda-graph-backend-prefill", "breakable"),
    "--nsa-prefill-backend": Renamed("--dsa-prefill-backend"),
    "--nsa-decode-backend": Renamed("--dsa-decode-backend"),
    "--enable-gdn-replayssm-spec": Renamed("--enable-linear-replayssm-spec"),
    "--speculative-dflash-draft-window-size": Renamed("--speculative-draft-window-size"),
    "--stream-output": Renamed("--incremental-streaming-output"),
    "--enable-hicache": Renamed("--enable-hierarchical-cache"),
}
"""From the deprecation notes of 0.5.17. ``--enable-hicache`` is the other way round: an alias that 0.5.23 added."""

NEVER_RELEASED = {
    "--max-consecutive-prefill-batches": (
        "is a flag of the gfx1100 fork only; releases have --prefill-decode-interval from 0.5.19 on"
    ),
    "--hicache-mamba-ratio": "is in no release; the host's states follow --hicache-ratio or --hicache-size",
    "--hicache-mamba-size-gb": "is in no release; the host's states follow --hicache-ratio or --hicache-size",
    "--mamba-path-cap-drop-host": "is in no release; --mamba-max-states-per-path caps the device's states only",
    "--hicache-serialize-load-back": "is in no release",
}
"""Flags that forks and open pull requests have, with what to do instead."""


def added_in(flag: str) -> str | None:
    """The version that brought the flag, ``None`` if :data:`FIRST_KNOWN` had it or no release has."""
    return _SINCE.get(flag)


def dropped_in(flag: str) -> str | None:
    """The first version without the flag."""
    return _UNTIL.get(flag)


def absence(flag: str, version: str) -> str | None:
    """Why this version's parser would refuse the flag; ``None`` if nothing speaks against it."""
    if flag in NEVER_RELEASED:
        return f"{flag} {NEVER_RELEASED[flag]}"
    since, until = added_in(flag), dropped_in(flag)
    if since is not None and version_key(version) < version_key(since):
        return f"{flag} exists from SGLang {since} on, not in {version}"
    if until is not None and version_key(version) >= version_key(until):
        return f"{flag} was dropped in SGLang {until}"
    return None


def _by_flag(table: dict[str, str]) -> dict[str, str]:
    return {flag: version for version, flags in table.items() for flag in flags.split()}


_SINCE = _by_flag(_ADDED)
_UNTIL = _by_flag(_DROPPED)
