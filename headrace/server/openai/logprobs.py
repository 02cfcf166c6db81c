"""Tokens' logprobs in the two shapes that OpenAI's routes have for them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.ipc.messages import TokenLogprob
from headrace.server.openai.protocol import ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, CompletionLogprobs
from headrace.server.openai.token_track import TokenEntry

if TYPE_CHECKING:
    from headrace.text.pieces import PieceTable

# OpenAI's number for "very unlikely"; JSON has none for minus infinity.
LEAST_LOGPROB = -9999.0


def completion_logprobs(entries: Iterable[TokenEntry], pieces: "PieceTable") -> CompletionLogprobs:
    """The lists of /v1/completions. The id that ended the answer is among them, as in OpenAI's.

    Tokens with the same text share a place in `top_logprobs`, which the likelier one keeps.
    """
    shape = CompletionLogprobs([], [], [], [])
    for entry in entries:
        token = token_text(entry.token_id, pieces)
        shape.text_offset.append(entry.offset)
        shape.tokens.append(token)
        if entry.logprob is None:
            shape.token_logprobs.append(None)
            shape.top_logprobs.append(None)
            continue
        top: dict[str, float] = {}
        for token_id, logprob in entry.logprob.top:
            top.setdefault(token_text(token_id, pieces), finite(logprob))
        shape.token_logprobs.append(finite(entry.logprob.logprob))
        top.setdefault(token, finite(entry.logprob.logprob))
        shape.top_logprobs.append(top)
    return shape


def chat_logprobs(entries: Iterable[TokenEntry], pieces: "PieceTable") -> ChatLogprobs:
    """The list of /v1/chat/completions: the tokens of the message, without the id that ended it."""
    return ChatLogprobs(
        [
            _chat_token(entry.token_id, entry.logprob, pieces)
            for entry in entries
            if entry.logprob is not None and not entry.is_end
        ]
    )


def token_text(token_id: int, pieces: "PieceTable") -> str:
    """A token for a reader: its text; "bytes:\\xNN..." where it is not one of whole characters."""
    piece = pieces.piece(token_id)
    if piece is None:
        return f"token_id:{token_id}"
    if isinstance(piece, str):
        return piece
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def token_bytes(token_id: int, pieces: "PieceTable") -> list[int] | None:
    """The bytes of a token's text; None for an id without a token (rows that pad an embedding)."""
    piece = pieces.piece(token_id)
    if piece is None:
        return None
    return list(piece.encode() if isinstance(piece, str) else piece)


def finite(logprob: float) -> float:
    """A number for JSON, which has none for minus infinity, nor for what is not a number."""
    return max(LEAST_LOGPROB, logprob)  # in this order: NaN is not above it


def _chat_token(token_id: int, logprob: TokenLogprob, pieces: "PieceTable") -> ChatTokenLogprob:
    return ChatTokenLogprob(
        token_text(token_id, pieces),
        token_bytes(token_id, pieces),
        finite(logprob.logprob),
        [
            ChatTopLogprob(token_text(other, pieces), token_bytes(other, pieces), finite(likely))
            for other, likely in logprob.top
        ],
    )
