"""The shape of the source: what the style asks for and a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from governor import events
from governor.errors import GovernorError
from serve.engine import Capabilities, Engine

ROOT = Path(__file__).parents[2]
PACKAGES = ("governor", "serve", "tui", "bench", "policies")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PAGES = "\n".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
LONGEST_FILE = 400

_HISTORY = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_sources_are_found() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_source_file(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE, "one idea a file"
    assert not _HISTORY.search(text)
    assert not _MACHINE_PATH.search(text)
    module = ast.parse(text)
    if path.name != "__init__.py":
        assert ast.get_docstring(module), "a module says what it owns"


STAND_INS = ROOT / "serve" / "sglang_cpu" / "engine_path"
"""Stand for other people's packages inside the engine's process, so they have those packages' shape."""
OUR_INITS = [path for path in SOURCES if path.name == "__init__.py" and STAND_INS not in path.parents]


@pytest.mark.parametrize("path", OUR_INITS, ids=_id)
def test_package_only_names_its_parts(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
        assert is_docstring or names, ast.unparse(node)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "docs"])
def test_no_machine_path_in_pages(name: str) -> None:
    start = ROOT / name
    for path in [start] if start.is_file() else sorted(start.rglob("*.md")):
        assert not _MACHINE_PATH.search(path.read_text()), path


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) > 15
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_every_design_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "design" / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs" / "design").glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_every_event_is_on_a_page() -> None:
    names = [kind.__name__ for kind in events.Event.__subclasses__()]
    assert len(names) >= 8
    assert [name for name in names if f"`{name}`" not in PAGES] == []


def test_every_method_of_the_engine_port_is_on_a_page() -> None:
    methods = [name for name in vars(Engine) if not name.startswith("_") and callable(getattr(Engine, name))]
    assert len(methods) >= 6
    assert [name for name in methods if f"`{name}(" not in PAGES] == []


def test_every_capability_is_explained() -> None:
    source = (ROOT / "serve" / "engine.py").read_text()
    for field in msgspec.structs.fields(Capabilities):
        assert re.search(rf"\b{field.name}\b", source)
        assert f"`{field.name}`" in PAGES, field.name


def test_every_error_stands_in_the_tree() -> None:
    def leaves(kind: type[GovernorError]) -> list[type[GovernorError]]:
        return [leaf for sub in kind.__subclasses__() for leaf in (sub, *leaves(sub))]

    import governor.errors  # noqa: PLC0415 - its docstring is what is checked

    tree = governor.errors.__doc__ or ""
    ours = [leaf for leaf in leaves(GovernorError) if leaf.__module__ == "governor.errors"]
    assert len(ours) > 15
    assert [leaf.__name__ for leaf in ours if leaf.__name__ not in tree] == []


def test_the_command_line_starts_without_heavy_imports() -> None:
    """``governor status`` must not load the embedded engine, the dashboard or a tokenizer."""
    code = "import sys, governor.cli.app; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"xllamacpp", "textual", "huggingface_hub", "numpy"} & set(loaded)
