"""Blocks of chats: equal digests exactly for equal beginnings, media included."""

from __future__ import annotations

from typing import Any

from llm.router.blocks import Block, Media, chat_blocks, estimate, reply_blocks
from llm.router.echo import Echo

CAT, DOG = Media("c" * 64, 100), Media("d" * 64, 100)


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def digests(body: dict[str, Any], *media: Media, size: int = 64) -> list[int]:
    return [block.digest for block in chat_blocks(body, media, size)]


def shared(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    assert not set(one[count:]) & set(other[count:]), "digests that come together again"
    return count


SYSTEM = say("system", "You answer. " * 20)  # 240 bytes: 4 blocks
IMAGE = {"type": "media", "index": 0}


def test_turns_continue_and_other_chats_part_where_they_differ() -> None:
    first = chat(SYSTEM, say("user", "one"))
    second = chat(*first["messages"], say("assistant", "1"), say("user", "two"))
    other = chat(SYSTEM, say("user", "three"))
    assert shared(digests(first), digests(second)) == 5
    assert len(digests(second)) == 7
    assert shared(digests(first), digests(other)) == 4
    assert shared(digests(first), digests(chat(say("system", "x"), say("user", "one")))) == 0


def test_media_are_their_digests_and_rows() -> None:
    asked = chat(SYSTEM, say("user", [IMAGE, {"type": "text", "text": "what is it?"}]))
    cat, dog = digests(asked, CAT), digests(asked, DOG)
    # The system message and what opens the user's.
    assert shared(cat, dog) == 5
    assert digests(asked, CAT) == cat
    prompt = estimate(list(chat_blocks(asked, [CAT], 64)), 4.0)
    assert prompt.ends[5] - prompt.ends[4] == 100
    assert prompt.tokens == prompt.ends[-1] + 1
    assert prompt.tokens == 240 // 4 + 100 + 11 // 4 + 1


def test_text_is_the_same_as_one_part_or_several() -> None:
    plain = digests(chat(say("user", "ab" * 50)))
    parts = [{"type": "text", "text": "ab" * 25}] * 2
    assert digests(chat(say("user", parts))) == plain


def test_everything_that_changes_the_prompt_changes_the_digests() -> None:
    body = chat(SYSTEM, say("user", "hello"))
    plain = digests(body)
    assert shared(plain, digests(body | {"chat_template_kwargs": {"enable_thinking": True}})) == 0
    tools = [{"type": "function", "function": {"name": "f"}}]
    # Tools stand behind the system message.
    assert shared(plain, digests(body | {"tools": tools})) == 4
    named = chat(SYSTEM, say("user", "hello", name="bob"))
    assert shared(plain, digests(named)) == 4
    called = chat(SYSTEM, say("assistant", "hello"))
    assert shared(plain, digests(called)) == 4
    # What the client adds for itself does not.
    assert digests(body | {"user": "x", "temperature": 1, "max_tokens": 5}) == plain


def test_boundaries_are_not_ambiguous() -> None:
    one = chat(say("user", "ab"), say("user", "c"))
    other = chat(say("user", "a"), say("user", "bc"))
    assert shared(digests(one), digests(other)) == 0
    thought = chat(say("assistant", "b", reasoning_content="a"))
    assert shared(digests(thought), digests(chat(say("assistant", "ab")))) == 0


def test_what_is_malformed_is_taken_as_it_is() -> None:
    for messages in (None, "text", [], [5, None, {}], [{"content": [{"type": "x"}, 7, None]}]):
        assert isinstance(digests({"messages": messages}), list)
    odd = chat(say("user", "\ud800 lone"), say("user", "x", big=2**70))
    assert len(digests(odd)) == 2
    assert digests(odd) == digests(odd)


def test_the_answer_continues_as_the_client_sends_it_back() -> None:
    asked = chat(SYSTEM, say("user", "one"))
    blocks = list(chat_blocks(asked, (), 64))
    echo = Echo()
    stream = (
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"the an"}}]}\n\n'
        b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"swer"}}]}\n\ndata: [DONE]\n\n',
    )
    for piece in stream:
        echo.feed(piece)
    message = echo.message()
    assert message is not None
    assert message["content"] == "the answer"
    answer = [block.digest for block in reply_blocks(blocks[-1].digest, message, 64)]
    echoed = chat(*asked["messages"], say("assistant", "the answer", refusal=None))
    assert digests(echoed) == [*(block.digest for block in blocks), *answer]


def test_tool_calls_of_a_stream_continue_too() -> None:
    call = b'{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\\"a\\""}}'
    rest = b'{"index":0,"function":{"arguments":": 1}"}}'
    echo = Echo()
    for piece in (call, rest):
        echo.feed(b'data: {"choices":[{"index":0,"delta":{"tool_calls":[' + piece + b"]}}]}\n\n")
    message = echo.message()
    assert message is not None
    function = {"name": "f", "arguments": '{"a": 1}'}
    sent = say("assistant", None, tool_calls=[{"id": "call_1", "function": function}])
    parent = 77
    mine = [block.digest for block in reply_blocks(parent, message, 64)]
    assert mine == [block.digest for block in reply_blocks(parent, sent, 64)]


def test_a_whole_document_is_read_and_an_error_has_no_message() -> None:
    echo = Echo()
    echo.feed(b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}')
    assert echo.message() == {"role": "assistant", "content": "hi"}
    failed = Echo()
    for piece in (b'{"error":{"message":"no"}}', b"not json", b'data: {"choices": 5}\n\n', b"{"):
        failed.feed(piece)
    assert failed.message() is None


def test_blocks_have_a_bounded_size() -> None:
    blocks = list(chat_blocks(chat(say("user", "x" * 1000)), (), 64))
    assert [len(block.text or b"") for block in blocks] == [64] * 15 + [40]
    assert [block.closes for block in blocks] == [False] * 15 + [True]
    assert all(isinstance(block, Block) and 0 <= block.digest < 2**64 for block in blocks)
