"""The machine's card, and one launched engine for all tests of it: a start takes minutes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from governor.settings import Home
from serve.doctor import LocalSystem, probe_gpus
from serve.install import engines_folder, find_engine, recipe_for
from serve.profile import load_profile, shipped_names
from tests.gpu.card import Card, NoCard, card_of
from tests.launched import Launch, launched
from tests.up import Up

_LIMIT_S = 3600
_READY_S = 1800
"""Weights from a slow disk, kernels compiled at the first start, graphs captured."""
_INHERITED = ("CUDA_", "HF_", "HIP_", "HSA_", "LD_LIBRARY_PATH", "NCCL_", "RCCL_", "ROCM_", "ROCR_", "TRITON_", "XDG_")
"""Beginnings of variables that the card's programs are found by."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def card() -> Card:
    """Skips where there is none, or where its engine is not installed."""
    try:
        found = card_of(probe_gpus(LocalSystem()), [load_profile(name) for name in shipped_names()], os.environ)
    except NoCard as reason:
        pytest.skip(str(reason))
    name = found.profile.name
    if find_engine(recipe_for(found.profile), engines_folder()) is None:
        pytest.skip(f"SGLang for {name} is not installed: governor engine install --profile {name}")
    return found


@pytest.fixture(scope="session")
def launch(card: Card) -> Launch:
    inherited = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
    return Launch(
        profile=card.profile.name,
        weights=card.weights,
        gpu_gib=card.gpu_gib,
        environment={**inherited, "GOVERNOR_ENGINES": str(engines_folder())},
        ready_s=_READY_S,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def governor(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with launched(launch, Home(tmp_path_factory.mktemp("gpu") / "home")) as running:
        yield running
