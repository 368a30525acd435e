"""What a client's next prompt is made of."""

from __future__ import annotations

from governor.simulate.conversation import Conversation, Message, Part, Sources
from governor.simulate.seen import Seen
from governor.types import PromptShape
from serve.twin.tiers_key import Key
from serve.twin.trace import Echo, Piece, PieceKind, Shared
from tests.simulation import turn

SHARED = Shared(name="tools", tokens=1000)


def begun(sources: Sources | None = None) -> tuple[Conversation, Key, Key]:
    """A conversation with its first prompt and the answer to it."""
    conversation = Conversation(sources or Sources(), SHARED)
    prompt = conversation.prompt_for(turn(100))
    answer = conversation.write(50)
    conversation.answered(answer)
    return conversation, prompt, answer


def test_a_fresh_prompt_begins_with_what_is_shared() -> None:
    sources = Sources()
    _, one, _ = begun(sources)
    _, two, _ = begun(sources)
    assert len(one) == 1100
    assert one.common(two, 0) == 1000


def test_a_shorter_beginning_of_the_same_name_is_a_beginning_of_the_longer() -> None:
    sources = Sources()
    long, short = sources.shared(SHARED), sources.shared(Shared(name="tools", tokens=400))
    assert long.common(short, 0) == 400


def test_an_exact_echo_continues_what_was_written() -> None:
    conversation, prompt, answer = begun()
    after = conversation.prompt_for(turn(10))
    assert after.cut(0, 1150) == prompt + answer
    assert len(after) == 1160
    assert conversation.messages == [Message(Part.USER, 100), Message(Part.ANSWER, 50), Message(Part.USER, 10)]


def test_a_rewritten_echo_is_as_long_in_other_tokens() -> None:
    conversation, prompt, answer = begun()
    after = conversation.prompt_for(turn(10, echo=Echo.REWRITTEN))
    assert len(after) == 1160
    assert after.common(prompt + answer, 0) == 1100


def test_a_rewritten_echo_may_have_another_length() -> None:
    conversation, _, _ = begun()
    assert len(conversation.prompt_for(turn(10, echo=Echo.REWRITTEN, echo_tokens=20))) == 1130


def test_a_dropped_answer_leaves_nothing() -> None:
    conversation, prompt, _ = begun()
    after = conversation.prompt_for(turn(10, echo=Echo.DROPPED))
    assert len(after) == 1110
    assert after.common(prompt, 0) == 1100


def test_a_branch_keeps_the_beginning_of_what_was_sent_and_written() -> None:
    conversation, prompt, answer = begun()
    after = conversation.prompt_for(turn(10, shape=PromptShape.BRANCH, branch_at=1120))
    assert after.common(prompt + answer, 0) == 1120
    assert conversation.messages == [Message(Part.USER, 100), Message(Part.ANSWER, 20), Message(Part.USER, 10)]


def test_a_repeat_is_the_same_prompt() -> None:
    conversation, prompt, _ = begun()
    assert conversation.prompt_for(turn(0, shape=PromptShape.REPEAT)) == prompt


def test_a_call_aside_leaves_the_conversation_as_it_was() -> None:
    conversation, prompt, answer = begun()
    aside = conversation.prompt_for(turn(10, aside=True))
    assert aside.common(prompt + answer, 0) == 1150
    after = conversation.prompt_for(turn(10))
    assert after.cut(0, 1150) == prompt + answer
    assert after != aside


def test_a_carrier_moves_to_the_end() -> None:
    conversation = Conversation(Sources(), SHARED)
    new = (Piece(tokens=100), Piece(tokens=80))
    first = conversation.prompt_for(turn(0, new=new, carrier_tokens=80))
    conversation.answered(conversation.write(50))
    second = conversation.prompt_for(turn(0, new=new, carrier_tokens=80))
    assert len(first) == 1180
    assert len(second) == 1100 + 50 + 180
    assert second.common(first, 0) == 1100


def test_a_prompt_has_a_token() -> None:
    assert len(Conversation(Sources(), None).prompt_for(turn(0, shape=PromptShape.REPEAT))) == 1


def test_a_compaction_keeps_both_ends() -> None:
    conversation = Conversation(Sources(), SHARED)
    pieces = [Piece(kind=PieceKind.TOOL, tokens=100) for _ in range(20)]
    before = conversation.prompt_for(turn(0, new=tuple(pieces)))
    middle = conversation.middle(3, 250, 4)
    assert len(middle) == 13
    conversation.compact(3, 250, 4, 30)
    assert len(conversation) == 1000 + 300 + 30 + 400
    assert conversation.key.common(before, 0) == 1300
    assert conversation.key.cut(1330, 1730) == before.cut(2600, 3000)
    assert sum(message.tokens for message in conversation.messages) == 730


def test_a_longer_tail_wins_over_fewer_messages() -> None:
    conversation = Conversation(Sources(), None)
    conversation.prompt_for(turn(0, new=tuple(Piece(tokens=100) for _ in range(10))))
    assert len(conversation.middle(0, 650, 2)) == 3


def test_the_same_history_gives_the_same_text_for_a_summary() -> None:
    conversation, _, _ = begun()
    head = Key([(99, 0, 10)])
    assert conversation.digest(head, 50).common(conversation.digest(head, 70), 0) == 60
    conversation.compact(0, 0, 0, 5)
    assert conversation.digest(head, 50).common(Key([(99, 0, 10)]) + Key([(5, 0, 50)]), 0) >= 10


def test_another_head_makes_another_prefix_of_the_same_messages() -> None:
    conversation, prompt, _ = begun()
    under = conversation.under(Key([(99, 0, 10)]))
    assert len(under) == 110
    assert under.cut(10, 110) == prompt.cut(1000, 1100)


def test_the_last_message_said_again_is_another_one() -> None:
    conversation, prompt, _ = begun()
    again = conversation.say_last_again(40)
    assert len(again) == 1140
    assert again.common(prompt, 0) == 1000


def test_seen_is_the_longest_prefix_that_was_computed() -> None:
    seen = Seen()
    one, two = Key([(1, 0, 100), (2, 0, 50)]), Key([(1, 0, 100), (3, 0, 50)])
    assert seen.prefix_tokens(one) == 0
    seen.add(one)
    assert seen.prefix_tokens(one) == 150
    assert seen.prefix_tokens(two) == 100
    assert seen.prefix_tokens(Key([(1, 0, 60), (2, 0, 50)])) == 60
    assert seen.prefix_tokens(Key([(1, 0, 100), (2, 0, 70)])) == 150
    assert seen.prefix_tokens(Key([(2, 0, 50)])) == 0
    seen.add(two)
    assert seen.prefix_tokens(two) == 150
    assert seen.prefix_tokens(one) == 150
