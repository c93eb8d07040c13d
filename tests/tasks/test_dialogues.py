"""Dialogues: what is read, what is refused, and what sequences are made of."""

import json

import numpy as np
import pytest

from fetchsgd.tasks.dialogues import (
    Dialogue,
    Layout,
    Specials,
    Turn,
    dialogue_examples,
    distinct_texts,
    fit,
    group_by_personality,
    pack,
    parse_dialogues,
)

BOS, EOS, ME, YOU, PAD = 90, 91, 93, 92, 94  # the partner is speaker 1
SPECIALS = Specials(bos=BOS, eos=EOS, speaker1=YOU, speaker2=ME, pad=PAD)


def tokens(*numbers):
    return np.array(numbers, np.int32)


class Spelled(dict):
    """Texts of numbers, which are their tokens."""

    def __missing__(self, text):
        return tokens(*map(int, text.split()))


DIALOGUE = Dialogue(
    ["1 2", "3"],
    [
        Turn(["10"], ["20", "21", "22 23"]),
        Turn(["10", "22 23", "11", "24", "12", "25", "13"], ["26 27 28", "29", "20"]),
    ],
)


def examples(length=64, order=(0, 1), candidates=2, exchanges=2):
    layout = Layout(SPECIALS, length, exchanges)
    return list(dialogue_examples(DIALOGUE, order, candidates, Spelled(), layout))


# --- building


def test_a_sequence_is_persona_history_and_reply():
    first, second = examples()
    assert first.context.tolist() == [BOS, 1, 2, 3, YOU, 10]
    assert first.types.tolist() == [ME, ME, ME, ME, YOU, YOU]
    assert [reply.tolist() for reply in first.replies] == [[ME, 21, EOS], [ME, 22, 23, EOS]]
    assert first.counted == 3  # 22, 23 and <eos>
    # Five utterances are remembered; the partner's is the last.
    expected = [BOS, 1, 2, 3, YOU, 11, ME, 24, YOU, 12, ME, 25, YOU, 13]
    assert second.context.tolist() == expected
    assert second.types.tolist()[4:] == [YOU, YOU, ME, ME, YOU, YOU, ME, ME, YOU, YOU]


def test_personas_come_in_the_order_asked_for():
    first, _ = examples(order=(1, 0))
    assert first.context.tolist() == [BOS, 3, 1, 2, YOU, 10]


def test_arrays_are_padded_on_the_right():
    both = examples()
    packed, counted = pack(both, SPECIALS)
    assert packed.shape == (2, 2, 2, 24)  # 19 tokens at most, in eights
    assert packed.dtype == np.int32
    assert counted.tolist() == [3, 2]
    for row, example in zip(packed, both, strict=True):
        for (words, types), reply in zip(row, example.replies, strict=True):
            whole = [*example.context, *reply]
            assert words.tolist() == whole + [PAD] * (24 - len(whole))
            speakers = [*example.types, *([ME] * len(reply))]
            assert types.tolist() == speakers + [PAD] * (24 - len(whole))


@pytest.mark.parametrize(
    ("room", "persona", "history"),
    [
        (12, [[1, 2], [3]], [[10], [22, 23], [11, 12]]),
        (11, [[1, 2], [3]], [[22, 23], [11, 12]]),  # the oldest utterance goes first
        (8, [[1, 2], [3]], [[11, 12]]),
        (6, [[1, 2]], [[11, 12]]),  # then the persona
        (5, [], [[11, 12]]),
        (3, [], [[12]]),  # then the beginning of what was said last
        (2, [], []),
    ],
)
def test_what_matters_least_is_left_out_first(room, persona, history):
    found = fit([tokens(1, 2), tokens(3)], [tokens(10), tokens(22, 23), tokens(11, 12)], room)
    assert [[part.tolist() for part in parts] for parts in found] == [persona, history]


@pytest.mark.parametrize("length", range(6, 25))
def test_no_example_is_longer_than_allowed_or_loses_its_reply(length):
    for example, whole in zip(examples(length), examples(), strict=True):
        assert example.length <= length
        assert example.length == min(whole.length, example.length)
        pairs = zip(example.replies, whole.replies, strict=True)
        assert all(np.array_equal(ours, other) for ours, other in pairs)
        assert example.context[0] == BOS
        assert len(example.types) == len(example.context)


def test_a_reply_that_does_not_fit_is_a_sentence():
    with pytest.raises(ValueError, match="task.length must be at least 5 for the reply '22 23'"):
        examples(length=4)


def test_too_few_candidates_are_a_sentence():
    with pytest.raises(ValueError, match="task.candidates is 4, but .* 3, whose reply is '22 23'"):
        examples(candidates=4)


# --- clients


def test_the_same_sentences_are_one_client_and_as_listings_they_may_be_two():
    turns = DIALOGUE.turns
    ab, ba, c = Dialogue(["a", "b"], turns), Dialogue(["b", "a"], turns), Dialogue(["c"], turns)
    assert group_by_personality([ab, c, ba, ab], ordered=False) == [[ab, ba, ab], [c]]
    assert group_by_personality([ab, c, ba, ab], ordered=True) == [[ab, ab], [c], [ba]]


# --- reading


GOOD = {"personality": ["i swim ."], "utterances": [{"history": ["hi"], "candidates": ["a", "b"]}]}


def parsed(tmp_path, train=GOOD, valid=GOOD):
    content = json.dumps({"train": [GOOD, train], "valid": [valid]}).encode()
    return parse_dialogues(content, tmp_path)


def test_a_file_is_read(tmp_path):
    splits = parsed(tmp_path)
    assert splits["valid"] == [Dialogue(["i swim ."], [Turn(["hi"], ["a", "b"])])]
    assert len(splits["train"]) == 2
    assert distinct_texts(splits) == ["i swim .", "hi", "a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"utterances": []}, r"train\[1\] is an empty dialogue"),
        ({"personality": []}, r"train\[1\] has no personality"),
        ({"personality": [1]}, r"train\[1\].personality must hold texts only"),
        ({"utterances": [{"history": ["hi"]}]}, r"train\[1\].utterances\[0\] has no candidates"),
        ({"utterances": [{"history": [], "candidates": ["a"]}]}, "has no history"),
        ({"utterances": ["hi"]}, "must be an object with 'history' and 'candidates'"),
    ],
)
def test_a_dialogue_that_is_none_is_a_sentence(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        parsed(tmp_path, GOOD | change)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"train": [\n  {,', "is not JSON: .* in line 2, column 4"),
        (b"\xff\xfe\x00\x00\xff", "UTF"),
        (b"[]", "must have a list 'train'"),
        (b'{"train": []}', "must have a list 'train' with at least one dialogue"),
        (b'{"train": [3]}', r"train\[0\] must be an object"),
    ],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        parse_dialogues(content, tmp_path / "file.json")
