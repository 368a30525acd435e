"""The installed engine of the machine's GPU."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from governor.cli.engine_install import install
from serve.install import recipe_for
from tests.gpu.card import Card

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_the_installation_passes_its_checks(card: Card) -> None:
    app = typer.Typer()
    app.command()(install)
    done = CliRunner().invoke(app, ["--profile", card.profile.name, "--check"])
    assert done.exit_code == 0, done.output
    steps = recipe_for(card.profile).steps
    assert done.stderr.count(": done before") == len(steps), done.stderr  # nothing had to be mended
