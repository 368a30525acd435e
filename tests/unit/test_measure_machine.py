"""What is recorded of the machine, the weights and the engine's settings; and the screen of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from governor.cli.bench_engine import settings_of
from governor.cli.bench_watch import BenchScreen
from governor.measure.fingerprint import model_hash
from governor.measure.machine import machine_facts
from governor.measure.result import Case, Left, Measure, Metric
from governor.measure.session import Step


class TwoCards:
    """A :class:`~serve.doctor.system.System` with an AMD card and nvidia-smi."""

    def __init__(self) -> None:
        card = "/sys/class/drm/card1/device"
        cores = [f"model name\t: Ryzen 5 9600X\ncpu MHz\t\t: {mhz}\n" for mhz in (3900.1, 5400.2)]
        self._files = {
            "/proc/cpuinfo": "".join(cores),
            "/proc/meminfo": "MemTotal:       65536000 kB\n",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            f"{card}/pp_dpm_sclk": "0: 500Mhz\n1: 2304Mhz *\n",
            f"{card}/pp_dpm_mclk": "0: 96Mhz *\n1: 1249Mhz\n",
            f"{card}/product_name": "Radeon RX 7900 XTX\n",
        }

    def read(self, path: str) -> str | None:
        return self._files.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        return ("card1", "card1-DP-1") if path == "/sys/class/drm" else ()

    def real(self, path: str) -> str | None:
        return path

    def can_open(self, path: str) -> bool:
        return path in self._files

    def run(self, command: Sequence[str]) -> str | None:
        return "NVIDIA RTX 4090, 570.1, 2520 MHz, 10501 MHz, 450.00 W\n" if command[0] == "nvidia-smi" else None


def test_a_machine_with_its_clocks() -> None:
    facts = machine_facts(TwoCards(), engine_is_local=True)
    assert facts.processor == "Ryzen 5 9600X"
    assert facts.processor_mhz == 5400
    assert facts.processor_governor == "performance"
    assert facts.memory_gib == 62.5
    assert facts.gpus == (
        "NVIDIA RTX 4090, 570.1, 2520 MHz, 10501 MHz, 450.00 W",
        "card1: Radeon RX 7900 XTX, sclk 2304Mhz, mclk 96Mhz",
    )


def test_weights_have_a_name_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"x" * (5 << 20))
        (folder / "readme.txt").write_text(name)
    one, other = tmp_path / "a", tmp_path / "b"
    assert model_hash(str(one)) == model_hash(str(other)), "what is no weight or configuration does not count"
    with (other / "model.safetensors").open("r+b") as weights:
        weights.seek(-10, 2)
        weights.write(b"y")
    assert model_hash(str(one)) != model_hash(str(other))
    assert model_hash(str(one / "model.safetensors")) is not None
    assert model_hash("Qwen/Qwen3-27B") is None
    assert model_hash("") is None


def test_settings_without_what_is_secret_or_of_this_start() -> None:
    told = {
        "page_size": 64,
        "attention_backend": "triton",
        "mamba_max_states_per_path": -1,
        "max_running_requests": 8,
        "kv_cache_dtype": "auto",
        "api_key": "sk-1",
        "admin_api_key": "sk-2",
        "hf_token": "t",
        "model_path": "/home/me/model",
        "host": "0.0.0.0",
        "port": 30000,
        "random_seed": 3,
        "startup_time": 1.5,
        "internal_states": [{}],
        "chat_template": "x" * 300,
    }
    kept = {"page_size", "attention_backend", "mamba_max_states_per_path", "max_running_requests", "kv_cache_dtype"}
    assert settings_of(told).keys() == kept


async def _nothing() -> None:
    return None


def test_the_screen_shows_the_table_how_far_it_is_and_what_was_thrown_out() -> None:
    written = io.StringIO()
    step = Step("cold 4,096", 1.0, _nothing)
    measure = Measure(
        case=Case(name="cold", context_tokens=4096),
        metric=Metric.TTFT_S,
        better="lower",
        values=(2.0,),
        median=2.0,
        q1=2.0,
        q3=2.0,
    )
    with BenchScreen(Console(file=written, force_terminal=True, width=120), "tiers") as screen:
        screen.on_steps(4.0)
        screen.on_step(step)
        screen.on_measure(measure)
        screen.on_left(Left(what="L2 4,096", reason="served by L1"))
        screen.on_step_done(step)
    shown = written.getvalue()
    for text in ("Time to the first token, s", "cold 4,096", "25%", "left", "served by L1"):
        assert text in shown
