"""Pieces of text to tokens and back, so that nobody's text is ever taken for a control token.

A family writes a message as pieces. A plain `str` is somebody's text and stays text, whatever it says; only what the
family itself marks as `Markup` may hold control tokens. Safe is therefore what one gets by writing nothing special.

Text between two control tokens is encoded as a whole, as `apply_chat_template` does: "user\\n" and "\\nHi" meet in one
token where the vocabulary has one for two newlines.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import tinker

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.tokenizer_utils import PlainTextEncoder, Tokenizer


class Markup(str):
    """Text of the family's own, in which the strings of control tokens mean those tokens."""

    __slots__ = ()


Piece = str | Markup | tinker.types.ImageChunk
Pieces = Sequence[Piece]

MARK = "\U0010ffff"
"""Stands before a control token in decoded text; a noncharacter, and taken out of all other text."""


class Encoder:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._plain = PlainTextEncoder(tokenizer)

    @cached_property
    def controls(self) -> dict[str, int]:
        """Every token that was added to the vocabulary by name, and so is more than text; blanks are text."""
        added = getattr(self.tokenizer, "get_added_vocab", dict)()
        return {text: number for text, number in added.items() if text.strip()}

    @cached_property
    def _names(self) -> dict[int, str]:
        return {number: text for text, number in self.controls.items()}

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.controls, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _marked_pattern(self) -> re.Pattern[str]:
        return re.compile(f"{MARK}(?={self._control_pattern.pattern})")

    def control(self, text: str) -> int:
        if text not in self.controls:
            raise RendererError(
                f"the tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r} has no token {text!r}: choose a "
                "renderer that belongs to the model (tinker_cookbook.model_info.get_recommended_renderer_name)"
            )
        return self.controls[text]

    def control_name(self, token: int) -> str | None:
        return self._names.get(token)

    # --- to tokens -----------------------------------------------------------------------------------

    def tokens(self, pieces: Pieces) -> list[int]:
        """Of text alone."""
        chunks = self.chunks(pieces)
        if any(not isinstance(chunk, tinker.EncodedTextChunk) for chunk in chunks):
            raise RendererError("text is needed here, and there is an image")
        return [token for chunk in chunks for token in chunk.tokens]  # pyright: ignore[reportAttributeAccessIssue]

    def chunks(self, pieces: Pieces) -> list[tinker.ModelInputChunk]:
        chunks: list[tinker.ModelInputChunk] = []
        tokens: list[int] = []
        text = ""
        for part in self._parts(pieces):
            if isinstance(part, str):
                text += part
                continue
            tokens += self._encode(text)
            text = ""
            if isinstance(part, int):
                tokens.append(part)
            else:
                chunks += [*text_chunk(tokens), part]
                tokens = []
        return [*chunks, *text_chunk(tokens + self._encode(text))]

    def _parts(self, pieces: Pieces) -> Iterable[str | int | tinker.types.ImageChunk]:
        for piece in pieces:
            if not isinstance(piece, Markup):
                yield piece
                continue
            end = 0
            for match in self._control_pattern.finditer(piece):
                yield piece[end : match.start()]
                yield self.controls[match.group()]
                end = match.end()
            yield piece[end:]

    def _encode(self, text: str) -> list[int]:
        return self._plain(text) if text else []

    # --- and back ------------------------------------------------------------------------------------

    def tag(self, text: str) -> str:
        """How `marked_text` shows this tag: marked if it is a token of its own, else as the text it is."""
        return MARK + text if text in self.controls else text

    def marked_text(self, tokens: Sequence[int]) -> str:
        """Decoded, with every control token marked, so that a tag can be told from text that looks like one."""
        text = ""
        start = 0
        for i, token in enumerate(tokens):
            if token in self._names:
                text += self._decode(tokens[start:i]) + MARK + self._names[token]
                start = i + 1
        return text + self._decode(tokens[start:])

    def unmarked(self, text: str) -> str:
        return self._marked_pattern.sub("", text)

    def _decode(self, tokens: Sequence[int]) -> str:
        return without_marks(decode_exactly(self.tokenizer, tokens)) if tokens else ""


def without_marks(text: str) -> str:
    """A model can write the noncharacter too, and must not make a tag of text by it."""
    return text.replace(MARK, "\ufffd")


def decode_exactly(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Without what some tokenizers are configured to do by default: to take the blank out of "a , b"."""
    if hasattr(tokenizer, "clean_up_tokenization_spaces"):
        return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
    return str(tokenizer.decode(tokens))


def tokens_weights_from_strings_weights(
    strings_weights: Sequence[tuple[str, float]], tokenizer: Tokenizer
) -> tuple[list[int], list[float]]:
    """For texts of one's own: each string encoded by itself, the tokenizer's own beginning before the first."""
    tokens: list[int] = []
    weights: list[float] = []
    for i, (text, weight) in enumerate(strings_weights):
        new = tokenizer.encode(text, add_special_tokens=i == 0)
        tokens += new
        weights += [weight] * len(new)
    return tokens, weights


def text_chunk(tokens: Sequence[int]) -> list[tinker.ModelInputChunk]:
    """None for no tokens: an empty chunk is not allowed in a prompt."""
    return [tinker.EncodedTextChunk(tokens=list(tokens))] if tokens else []


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items (tokens, say) the two begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
