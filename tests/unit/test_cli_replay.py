"""``governor trace`` and ``governor replay`` on a small trace, through the real simulator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from governor.cli import trace
from governor.cli.replay import Replayed, replay
from governor.settings import Home
from governor.simulate.result import Result as Run
from governor.store.database import sqlite_url
from governor.store.model import TurnOpened
from serve.twin.trace import (
    Agent,
    Client,
    Header,
    Line,
    Piece,
    Session,
    Shared,
    Turn,
    assembled,
    read_trace,
    write_trace,
)
from tests.logged import Talk
from tests.store_records import turn_log

app = typer.Typer()
app.command()(replay)
app.add_typer(trace.app, name="trace")

PROFILE = ("-p", "twin:rx7900xtx-tp2")
MAIL_TURNS = 5


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One agent writes a long answer, another calls tools beside it."""
    lines: list[Line] = [
        Header(name="small", summary="a hog and a mail agent", window_tokens=196_608, sources=("made up",)),
        Agent(name="hog"),
        Agent(name="mail", policy="background"),
        Session(agent="hog", session="s"),
        Turn(agent="hog", session="s", new=(Piece(tokens=60_000),), output_tokens=20_000),
        Session(agent="mail", session="s", start_s=5, shared=Shared(name="mail", tokens=3000)),
    ]
    lines += [
        Turn(agent="mail", session="s", after_s=2, new=(Piece(tokens=700),), output_tokens=100, cap=4096)
        for _ in range(MAIL_TURNS)
    ]
    file = tmp_path / "small.trace"
    file.write_bytes(write_trace(assembled(lines)))
    return file


def test_a_trace_is_shown(small: Path) -> None:
    made = msgspec.json.decode(run("trace", "show", small, "--json").stdout)
    hog, mail = made["agents"]
    assert (made["turns"], made["last_start_s"]) == (6, 5)
    assert (hog["longest_prompt_tokens"], hog["output_tokens"], hog["uncapped_turns"]) == (60_000, 20_000, 1)
    assert (mail["turns"], mail["longest_prompt_tokens"], mail["uncapped_turns"]) == (5, 3000 + 5 * 700 + 4 * 100, 0)
    assert mail["prompt_tokens"] == sum(3000 + n * 700 + (n - 1) * 100 for n in range(1, 6))
    text = run("trace", "show", small).stdout
    assert "a hog and a mail agent" in text
    assert "from: made up" in text


def test_the_incident_is_shipped() -> None:
    made = msgspec.json.decode(run("trace", "show", "incident", "--json").stdout)
    assert len(made["agents"]) == 4
    assert max(agent["longest_output_tokens"] for agent in made["agents"]) == 70_000
    assert "incident" in run("replay", "incidents", *PROFILE).stderr


def test_a_replay_has_figures_of_each_agent(small: Path) -> None:
    told = run("replay", small, *PROFILE, "--json")
    assert told.exit_code == 0, told.output
    [only] = msgspec.json.decode(told.stdout, type=Replayed).runs
    hog, mail = only.agents
    assert (only.name, only.trace, only.machine, only.governed) == ("shipped policies", "small", "rx7900xtx-tp2", True)
    assert (hog.turns, mail.turns, mail.good) == (1, MAIL_TURNS, MAIL_TURNS)
    assert hog.tokens.prompt == hog.tokens.new == 60_000
    assert 40 < (hog.ttft_max_s or 0) < 80
    assert mail.tokens.output == 500
    cached = mail.tokens.cached_device + mail.tokens.cached_host + mail.tokens.cached_storage
    assert mail.tokens.prompt == cached + mail.tokens.prefilled
    assert mail.stall is not None
    assert mail.stall.seconds == max(mail.ttft_max_s or 0, mail.stall.seconds)


def test_runs_are_compared_to_the_first(small: Path, tmp_path: Path) -> None:
    tight = tmp_path / "tight"
    tight.mkdir()
    (tight / "hog.toml").write_text("[output]\ntool_step = 500\nfinal = 500\n")
    rows, drawn = tmp_path / "rows.json", tmp_path / "plot.png"
    told = run(
        "replay", small, *PROFILE, "--ungoverned", "--compare", tight, "--rows", rows, "--plot", drawn, "--picture"
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    for text in ("no governor", "shipped policies", str(tight), "L1 in use", "x0.02", "all done after"):
        assert text in told.stdout
    assert drawn.read_bytes().startswith(b"\x89PNG")
    lines = [msgspec.json.decode(line) for line in rows.read_bytes().splitlines()]
    runs = {line["name"]: msgspec.convert(line["result"], Run) for line in lines}
    written = {name: sum(row.output_tokens for row in each.of("hog")) for name, each in runs.items()}
    assert written == {"no governor": 20_000, "shipped policies": 8192, str(tight): 500}


def test_no_picture_where_it_is_not_a_terminal(small: Path) -> None:
    assert "L1 in use" not in run("replay", small, *PROFILE).stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("nowhere.trace", *PROFILE), 2, "No such file"),
        (("SMALL", "-p", "rx7900xtx-tp2"), 2, "twin:MACHINE"),
        (("SMALL", "-p", "twin:toaster"), 2, "There is no machine"),
        (("SMALL", *PROFILE, "--policies", "nowhere"), 2, "no folder of policies"),
        (("SMALL", *PROFILE, "--policies", "BAD"), 2, "outputs"),
        (("SMALL", *PROFILE, "--plot", "x.gif"), 1, "not x.gif"),
    ],
)
def test_what_is_wrong_is_said_with_an_exit_code(
    small: Path, tmp_path: Path, args: tuple[str, ...], code: int, words: str
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "hog.toml").write_text("[outputs]\n")
    places = {"SMALL": str(small), "BAD": str(bad)}
    told = run("replay", *(places.get(arg, arg) for arg in args))
    assert told.exit_code == code
    assert words in told.stderr


def test_a_broken_trace_is_named_with_its_line(small: Path) -> None:
    small.write_text(small.read_text().replace('"start_s":5', '"start_s":-5'))
    told = run("trace", "show", small)
    assert told.exit_code == 2
    assert "small.trace:6" in told.stderr


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home in whose log two agents have spoken."""
    home = Home(tmp_path / "home")
    home.policies.mkdir(parents=True)
    (home.policies / "ada.toml").write_text('base = "hermes"\n')
    (home.policies / "bob.toml").write_text("[broken\n")
    with turn_log(sqlite_url(home.database)) as log:
        for talk in (Talk("ada"), Talk("bob")):
            talk.ask(["system", "task"], at=0)
            talk.ask(["system", "task", "answer", "more"], at=3)
            for row in talk.rows:
                assert row.agent is not None
                assert row.route is not None
                assert row.opened_at is not None
                log.opened(TurnOpened(turn_id=row.turn_id, agent=row.agent, route=row.route, opened_at=row.opened_at))
                assert row.closed is not None
                log.closed(row.closed)
        assert log.flush(5)
    return home


def test_a_log_becomes_a_file(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "day.trace"
    told = run("trace", "record", "--home", home.root, "--out", file)
    assert told.exit_code == 0, told.output
    made = read_trace(file.read_bytes())
    assert made.header.name == "day"
    assert [(agent.name, agent.client) for agent in made.agents] == [("ada", Client.HERMES), ("bob", Client.PLAIN)]
    assert "4 turns, 2 agents, 2 sessions" in told.stderr
    assert "note: 2 x agents may send answers back unchanged" in told.stderr
    assert "s1" in run("trace", "record", "--home", home.root, "--out", "-").stdout


def test_only_some_agents_and_no_names(home: Home) -> None:
    told = run("trace", "record", "--home", home.root, "--agents", "bob, eve", "--anonymous", "--out", "-")
    made = read_trace(told.stdout.encode())
    assert [agent.name for agent in made.agents] == ["agent-1"]
    assert "no turn of eve" in told.stderr
    nobody = run("trace", "record", "--home", home.root, "--since", "1m", "--out", "-")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "no turn of these agents in this time" in nobody.stderr


def test_a_file_is_replaced_only_when_it_is_named(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("trace", "record", "--home", home.root).exit_code == 0
    again = run("trace", "record", "--home", home.root)
    assert (again.exit_code, "recorded.trace is there already" in again.stderr) == (2, True)
    assert run("trace", "record", "--home", home.root, "--out", "recorded.trace").exit_code == 0
    assert run("trace", "record", "--home", tmp_path / "none", "--out", "x").exit_code == 3
    assert run("trace", "record", "--home", home.root, "--out", tmp_path / "no" / "x").exit_code == 2
