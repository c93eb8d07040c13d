"""Dialogues between people with personalities, as arrays of tokens (PersonaChat, appendix A.3).

A sequence is what the model reads when it is its turn to speak:

    <bos> persona ... <speaker1> utterance <speaker2> utterance <speaker1> utterance
    <speaker2> reply <eos>

The model is speaker 2, and its persona is in its own words. Beside every token stands its type, the
token of the speaker whose words they are. An example is a few such sequences that differ in the
reply; the last has the reply that was given, the others distract. Nothing here needs a tokenizer:
texts have been turned into tokens before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64
from numpy.typing import NDArray

SPLITS = ("train", "valid")
# A multiple of this as the width of the arrays suits tensor cores.
ALIGNMENT = 8

Tokens = NDArray[np.int32]
Vocabulary = Mapping[str, Tokens]  # from a text to its tokens


@dataclass(frozen=True)
class Turn:
    """What was said before, the partner's words last, and replies, the one given last."""

    history: list[str]
    candidates: list[str]


@dataclass(frozen=True)
class Dialogue:
    """A conversation of somebody who was given a personality."""

    personality: list[str]
    turns: list[Turn]


@dataclass(frozen=True)
class Specials:
    """The tokens that structure a sequence; they occur in no text."""

    bos: int
    eos: int
    speaker1: int
    speaker2: int
    pad: int


@dataclass(frozen=True)
class Layout:
    """How sequences are built. `exchanges`: how many utterances of both speakers are remembered."""

    specials: Specials
    length: int = 256
    exchanges: int = 2


@dataclass(frozen=True)
class Example:
    """A context, and the replies that may follow it."""

    context: Tokens
    types: Tokens
    replies: list[Tokens]  # each from <speaker2> to <eos>

    @property
    def length(self) -> int:
        return len(self.context) + max(map(len, self.replies))

    @property
    def counted(self) -> int:
        """Tokens of the last reply that the model predicts: all but <speaker2>."""
        return len(self.replies[-1]) - 1


# --- reading


def parse_dialogues(content: bytes, path: Path) -> dict[str, list[Dialogue]]:
    """The dialogues of both splits. What is not as it should be gets a sentence."""
    try:
        found = json.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error.reason}") from error
    splits = {}
    for split in SPLITS:
        dialogues = found.get(split) if isinstance(found, dict) else None
        if not isinstance(dialogues, list) or not dialogues:
            raise ValueError(f"{path} must have a list {split!r} with at least one dialogue")
        splits[split] = [
            parse_dialogue(dialogue, f"{path}: {split}[{i}]")
            for i, dialogue in enumerate(dialogues)
        ]
    return splits


def parse_dialogue(found: Any, where: str) -> Dialogue:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be an object with 'personality' and 'utterances'")  # noqa: TRY004
    personality = parse_texts(found, "personality", where)
    turns = found.get("utterances")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where} is an empty dialogue: it must have at least one of 'utterances'")
    return Dialogue(
        personality, [parse_turn(turn, f"{where}.utterances[{i}]") for i, turn in enumerate(turns)]
    )


def parse_turn(found: Any, where: str) -> Turn:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be an object with 'history' and 'candidates'")  # noqa: TRY004
    return Turn(parse_texts(found, "history", where), parse_texts(found, "candidates", where))


def parse_texts(found: dict[str, Any], name: str, where: str) -> list[str]:
    texts = found.get(name)
    if not isinstance(texts, list) or not texts:
        raise ValueError(f"{where} has no {name}; it must be a list of at least one text")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}.{name} must hold texts only")
    return texts


def distinct_texts(splits: Mapping[str, list[Dialogue]]) -> list[str]:
    """Every text once, in the order of the file."""
    seen: dict[str, None] = {}
    for dialogues in splits.values():
        for dialogue in dialogues:
            seen.update(dict.fromkeys(dialogue.personality))
            for turn in dialogue.turns:
                seen.update(dict.fromkeys(turn.history))
                seen.update(dict.fromkeys(turn.candidates))
    return list(seen)


def group_by_personality(dialogues: Sequence[Dialogue], ordered: bool) -> list[list[Dialogue]]:
    """The dialogues of each client, in the order of the file.

    ordered: whether the same sentences in another order make another personality.
    """
    clients: dict[tuple[str, ...], list[Dialogue]] = {}
    for dialogue in dialogues:
        sentences = dialogue.personality if ordered else sorted(dialogue.personality)
        clients.setdefault(tuple(sentences), []).append(dialogue)
    return list(clients.values())


# --- building


def dialogue_examples(
    dialogue: Dialogue, order: Sequence[int], candidates: int, tokens: Vocabulary, layout: Layout
) -> Iterator[Example]:
    """One example per turn, with the sentences of the personality in the given order."""
    persona = [tokens[dialogue.personality[i]] for i in order]
    remembered = 2 * layout.exchanges + 1
    for turn in dialogue.turns:
        if len(turn.candidates) < candidates:
            raise ValueError(
                f"task.candidates is {candidates}, but the file has a turn with "
                f"{len(turn.candidates)}, whose reply is {turn.candidates[-1]!r}"
            )
        history = [tokens[text] for text in turn.history[-remembered:]]
        replies = [
            whole_reply(tokens[text], text, layout) for text in turn.candidates[-candidates:]
        ]
        room = layout.length - max(map(len, replies))
        context, types = build_context(*fit(persona, history, room), layout.specials)
        yield Example(context, types, replies)


def whole_reply(words: Tokens, text: str, layout: Layout) -> Tokens:
    """From <speaker2> to <eos>. It is never cut, since perplexity is that of whole replies."""
    specials = layout.specials
    reply = np.concatenate([[specials.speaker2], words, [specials.eos]]).astype(np.int32)
    if 1 + len(reply) > layout.length:
        raise ValueError(
            f"task.length must be at least {1 + len(reply)} for the reply {text!r}, "
            f"got {layout.length}"
        )
    return reply


def fit(
    persona: list[Tokens], history: list[Tokens], room: int
) -> tuple[list[Tokens], list[Tokens]]:
    """Leave out what matters least, until <bos> and the rest take no more than `room` tokens.

    First the oldest utterances, then sentences of the personality, then the beginning of what the
    partner said last. The room is the same for all candidates, so that the context does not tell
    which of them is right.
    """

    def surplus() -> int:
        return 1 + sum(map(len, persona)) + sum(1 + len(words) for words in history) - room

    while surplus() > 0 and len(history) > 1:
        history = history[1:]
    while surplus() > 0 and persona:
        persona = persona[:-1]
    if (over := surplus()) > 0:
        history = [history[0][over:]] if over < len(history[0]) else []
    return persona, history


def build_context(
    persona: list[Tokens], history: list[Tokens], specials: Specials
) -> tuple[Tokens, Tokens]:
    """Tokens and types of everything before the reply."""
    parts = [np.array([specials.bos], np.int32), *persona]
    speakers = [specials.speaker2] * len(parts)
    # The partner spoke last, and the two take turns.
    for i, words in enumerate(history):
        speaker = specials.speaker1 if (len(history) - i) % 2 else specials.speaker2
        parts += [np.array([speaker], np.int32), words]
        speakers += [speaker, speaker]
    lengths = [len(part) for part in parts]
    return np.concatenate(parts), np.repeat(np.array(speakers, np.int32), lengths)


def pack(
    examples: Sequence[Example], specials: Specials
) -> tuple[Int32[np.ndarray, "n candidates 2 length"], Int64[np.ndarray, " n"]]:
    """All examples as one array, tokens and types, padded on the right; and what counts of each.

    As long as the longest example, which is less than the longest allowed as a rule.
    """
    width = max(example.length for example in examples)
    width = -(-width // ALIGNMENT) * ALIGNMENT
    shape = (len(examples), len(examples[0].replies), 2, width)
    packed = np.full(shape, specials.pad, np.int32)
    for row, example in zip(packed, examples, strict=True):
        start = len(example.context)
        row[:, 0, :start] = example.context
        row[:, 1, :start] = example.types
        for sequence, reply in zip(row, example.replies, strict=True):
            sequence[0, start : start + len(reply)] = reply
            sequence[1, start : start + len(reply)] = specials.speaker2
    return packed, np.array([example.counted for example in examples], np.int64)
