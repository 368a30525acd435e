"""Agents and their keys."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import pytest

from governor.clock import ManualClock, SystemClock
from governor.errors import BadRequest, ConfigError, NotFound
from governor.identity.agents import KEY_FORM, AgentBook, ClientKind
from governor.names import agent_name, is_agent_name, policy_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "agents.json"


@pytest.fixture
def book(path: Path) -> AgentBook:
    it = AgentBook(path, ManualClock())
    it.load()
    return it


def test_a_key_opens_and_is_nowhere_on_disk(book: AgentBook, path: Path) -> None:
    key = book.add("ollie", ClientKind.HERMES)
    assert KEY_FORM.fullmatch(key.reveal())
    assert book.authenticate(key.reveal()) == "ollie"
    text = path.read_text()
    assert key.reveal() not in text
    assert hashlib.sha256(key.reveal().encode()).hexdigest() in text
    assert key.reveal() not in repr(key)
    assert path.stat().st_mode & 0o777 == 0o600
    (agent,) = book.agents()
    assert (agent.name, agent.client, agent.created_at) == ("ollie", ClientKind.HERMES, 1_700_000_000.0)


@pytest.mark.parametrize(
    "presented", ["", "gov-", "Bearer x", "gov-" + "A" * 43, "gov-" + "A" * 43 + "\n", "\ud800", "é" * 47, "x" * 10**6]
)
def test_anything_else_opens_nothing(book: AgentBook, presented: str) -> None:
    book.add("ollie")
    assert book.authenticate(presented) is None


def test_every_bit_of_a_key_counts(book: AgentBook) -> None:
    key = book.add("ollie").reveal()
    for at in range(len(key)):
        other = key[:at] + ("B" if key[at] != "B" else "C") + key[at + 1 :]
        assert book.authenticate(other) is None
    assert book.authenticate(key[:-1]) is None
    assert book.authenticate(key + "A") is None


def test_a_digest_is_no_key(book: AgentBook) -> None:
    book.add("ollie")
    assert book.authenticate(book.agents()[0].key_sha256) is None


def test_rotation_refuses_the_old_key_at_once(book: AgentBook) -> None:
    old, other = book.add("ollie"), book.add("ada")
    new = book.rotate("ollie")
    assert book.authenticate(old.reveal()) is None
    assert book.authenticate(new.reveal()) == "ollie"
    assert book.authenticate(other.reveal()) == "ada"


def test_removal(book: AgentBook) -> None:
    key, other = book.add("ollie"), book.add("ada")
    book.remove("ollie")
    assert book.authenticate(key.reveal()) is None
    assert book.authenticate(other.reveal()) == "ada"
    assert book.get("ollie") is None
    assert book.get("ada") is not None
    for act in (book.remove, book.rotate):
        with pytest.raises(NotFound):
            act("ollie")


def test_a_name_is_taken_once(book: AgentBook) -> None:
    key = book.add("ollie")
    with pytest.raises(BadRequest, match="already"):
        book.add("ollie")
    assert book.authenticate(key.reveal()) == "ollie"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "/etc/x", "A", "a b", "a\n", "a\0", "-a", ".a", "é", "x" * 65]
)
def test_names_that_could_leave_a_folder_are_refused(book: AgentBook, path: Path, name: str) -> None:
    assert not is_agent_name(name)
    for act in (agent_name, book.add, lambda it: policy_path(path.parent, it)):
        with pytest.raises(BadRequest, match="not an agent's name"):
            act(name)


@pytest.mark.parametrize("name", ["a", "0", "ollie.2", "a..b", "a-b_c.d", "x" * 64])
def test_good_names_stay_inside(name: str, tmp_path: Path) -> None:
    assert policy_path(tmp_path, name).parent == tmp_path
    assert policy_path(tmp_path, name).resolve().parent == tmp_path.resolve()


def test_another_process_adds_while_this_one_serves(path: Path) -> None:
    serving, command = AgentBook(path, SystemClock()), AgentBook(path, SystemClock())
    serving.load()
    key = command.add("ollie")
    assert serving.authenticate(key.reveal()) == "ollie"
    new = command.rotate("ollie")
    assert serving.authenticate(key.reveal()) is None
    assert serving.authenticate(new.reveal()) == "ollie"
    command.remove("ollie")
    assert serving.authenticate(new.reveal()) is None


def test_writes_within_one_tick_of_the_file_systems_clock_are_seen(path: Path) -> None:
    """Inode, size and times are the same then; only the content differs."""
    serving = AgentBook(path, SystemClock())
    one = AgentBook(path, SystemClock()).add("ollie")
    first = path.read_text()
    two = AgentBook(path, SystemClock()).rotate("ollie")
    second = path.read_text()
    for _ in range(20):
        path.write_text(first)
        assert serving.authenticate(one.reveal()) == "ollie"
        path.write_text(second)
        assert serving.authenticate(two.reveal()) == "ollie"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid"),
        ("{", "not valid"),
        ("[]", "not valid"),
        ('{"agents": [{"name": "a"}]}', "key_sha256"),
        ('{"agents": [], "extra": 1}', "extra"),
        ('{"version": 2}', "newer governor"),
        ('{"agents": [{"name": "../a", "key_sha256": "x", "created_at": 0}]}', "not an agent's name"),
        (
            '{"agents": [{"name": "a", "key_sha256": "x", "created_at": 0},'
            '{"name": "b", "key_sha256": "x", "created_at": 0}]}',
            "share",
        ),
    ],
)
def test_a_bad_file_stops_the_start_but_not_those_who_work(book: AgentBook, path: Path, text: str, words: str) -> None:
    key = book.add("ollie")
    good = path.read_text()
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        AgentBook(path, ManualClock()).load()
    with pytest.raises(ConfigError, match=words):
        book.add("ada")
    assert book.authenticate(key.reveal()) == "ollie"
    assert words in str(book.problem)
    path.write_text(good)
    assert book.authenticate(key.reveal()) == "ollie"
    assert book.problem is None


def test_a_lost_file_locks_nobody_out(book: AgentBook, path: Path) -> None:
    key = book.add("ollie")
    text = path.read_text()
    path.unlink()
    assert book.authenticate(key.reveal()) == "ollie"
    assert "is gone" in str(book.problem)
    path.write_text(text)
    assert book.authenticate(key.reveal()) == "ollie"
    assert book.problem is None


def test_a_file_that_others_can_write_is_refused(book: AgentBook, path: Path) -> None:
    book.add("ollie")
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="other users"):
        AgentBook(path, ManualClock()).load()


def _add(path: Path, prefix: str, count: int) -> None:
    book = AgentBook(path, SystemClock())
    for number in range(count):
        book.add(f"{prefix}{number}")


def test_processes_that_add_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add, args=(path, prefix, 8)) for prefix in ("a", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    book = AgentBook(path, SystemClock())
    assert {agent.name for agent in book.agents()} == {f"{prefix}{n}" for prefix in "ab" for n in range(8)}
