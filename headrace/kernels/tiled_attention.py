"""Attention in which a token's result has the same bits in a prompt of any chunks and in any company.

Keys lie in tiles that are counted from the start of the request, queries in blocks of a fixed number of tokens;
both are filled up, so that every product is of one shape. A token's weights are relative to the largest score of
all its keys (a maximum is exact in any order), and tiles are added up in order, where one that is wholly hidden
adds an exact zero. All of it is float32, whatever the model's dtype.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

TILE = 128
# Tokens in a block of queries. A decoding request fills up all but one.
QUERY_TOKENS = 8
# Decoding requests are taken so many at a time that no more slots than this are read, unless one alone has more.
_SLOTS_AT_ONCE = 16384
# What weighs less than the largest by this factor (2e-35), hidden keys included, weighs nothing.
_LEAST_EXPONENT = -80.0
_NEGLIGIBLE = 1.001 * math.exp(_LEAST_EXPONENT)


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Some tokens of a chunk and the tiles that they see.

    Attributes:
        tiles: the tiles, counted from the first that is read.
        hidden_from: the first of these tiles in which something is hidden from some of the tokens.
        mask: float32 [tiles from there, 1, QUERY_TOKENS, 1, TILE], to be added to the scores.
    """

    tiles: slice
    hidden_from: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class TiledPrefill:
    """One request's chunk of `length` tokens, which are the last of its context.

    Attributes:
        slots: int64 [tiles * TILE]; where the keys and values of the tiles lie that some token sees, filled up with
            a slot of the request's own.
    """

    slots: torch.Tensor
    length: int
    blocks: tuple[QueryBlock, ...]


@dataclass(frozen=True, slots=True)
class TiledDecode:
    """One new token each of some requests.

    Attributes:
        slots: int64 [rows, tiles * TILE], filled up with slots of the request's own.
        mask: float32 [rows, tiles, 1, 1, 1, TILE], to be added to the scores.
    """

    slots: torch.Tensor
    mask: torch.Tensor


def tiled_prefill(slots: torch.Tensor, length: int, window: int | None = None) -> TiledPrefill:
    """For the last `length` tokens of a context in `slots`, int64 [context].

    With a `window`, each token sees that many, itself included.
    """
    context = slots.shape[0]
    first_tile = _first_tile(context - length, window)
    kept = slots[first_tile * TILE :]
    filled = torch.cat((kept, kept[:1].expand(-len(kept) % TILE)))
    places = torch.arange(first_tile * TILE, first_tile * TILE + len(filled), device=slots.device)
    blocks: list[QueryBlock] = []
    for start in range(context - length, context, QUERY_TOKENS):
        # The tokens that fill up a block see what the last one does.
        tokens = torch.arange(start, start + QUERY_TOKENS, device=slots.device).clamp_(max=context - 1)
        tiles = slice(_first_tile(start, window) - first_tile, int(tokens[-1]) // TILE + 1 - first_tile)
        hidden_from = tiles.start if window is not None else start // TILE
        seen = places[hidden_from * TILE : tiles.stop * TILE]
        mask = _hidden(seen, tokens[:, None], window).view(QUERY_TOKENS, -1, TILE).transpose(0, 1)
        blocks.append(QueryBlock(tiles, hidden_from - tiles.start, mask[:, None, :, None, :].contiguous()))
    return TiledPrefill(filled, length, tuple(blocks))


def tiled_decode(slots: torch.Tensor, lengths: torch.Tensor, window: int | None = None) -> TiledDecode:
    """For requests whose contexts are the first `lengths` [rows] of each row of slots, int64 [rows, longest].

    With a `window`, only the last so many of each are seen. `longest` is the greatest of `lengths`.
    """
    rows = slots.shape[0]
    newest = lengths - 1
    first_tiles = torch.zeros_like(newest)
    if window is not None:
        first_tiles = (newest - window + 1).clamp_(min=0) // TILE
    tiles = int((newest // TILE - first_tiles).max()) + 1
    places = first_tiles[:, None] * TILE + torch.arange(tiles * TILE, device=slots.device)
    mask = _hidden(places, newest[:, None], window)
    own = slots.gather(1, torch.where(places < lengths[:, None], places, places[:, :1]))
    return TiledDecode(own, mask.view(rows, tiles, 1, 1, 1, TILE))


def tiled_prefill_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: TiledPrefill
) -> torch.Tensor:
    """query [length, heads, head_dim] over one layer's cache; gives [length, heads * head_dim].

    The chunk's own keys and values are in the cache already.
    """
    kv_heads, head_dim = keys.shape[1:]
    blocks = len(context.blocks)
    filled = query.new_zeros((blocks * QUERY_TOKENS, *query.shape[1:]))
    filled[: context.length] = query
    queries = _by_head(filled.view(blocks, QUERY_TOKENS, kv_heads, -1, head_dim))
    key, value = _tiles(keys, context.slots, 1), _tiles(values, context.slots, 1)
    parts = [
        _attend(
            queries[at : at + 1],
            key[:, block.tiles],
            value[:, block.tiles],
            block.mask,
            hidden_from=block.hidden_from,
        )
        for at, block in enumerate(context.blocks)
    ]
    return _by_token(torch.cat(parts), query.dtype).reshape(-1, query.shape[1] * head_dim)[: context.length]


def tiled_decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: TiledDecode
) -> torch.Tensor:
    """query [rows, heads, head_dim] over one layer's cache; gives [rows, heads * head_dim].

    The new tokens' own keys and values are in the cache already.
    """
    rows = len(context.slots)
    at_once = max(1, _SLOTS_AT_ONCE // context.slots.shape[1])
    filled = query.new_zeros((rows, QUERY_TOKENS, *query.shape[1:]))
    filled[:, 0] = query
    queries = _by_head(filled.view(rows, QUERY_TOKENS, keys.shape[1], -1, keys.shape[2]))
    parts = []
    for some in (slice(start, start + at_once) for start in range(0, rows, at_once)):
        slots = context.slots[some]
        key, value = (_tiles(cache, slots.flatten(), len(slots)) for cache in (keys, values))
        parts.append(_attend(queries[some], key, value, context.mask[some], tokens=1))
    return _by_token(torch.cat(parts), query.dtype).reshape(rows, -1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    hidden_from: int = 0,
    tokens: int = QUERY_TOKENS,
) -> torch.Tensor:
    """The first `tokens` of query [n, kv_heads, QUERY_TOKENS, shared, head_dim] over keys and values
    [n, tiles, kv_heads, TILE, head_dim]; the mask is for the tiles from `hidden_from` on.

    Gives [n, kv_heads, tokens, shared, head_dim].
    """
    count, tiles, kv_heads, _, head_dim = keys.shape
    shared = query.shape[3]
    products = count * tiles * kv_heads
    each_tile = query.unsqueeze(1).expand(-1, tiles, -1, -1, -1, -1).reshape(products, -1, head_dim)
    products_shape = (count, tiles, kv_heads, QUERY_TOKENS, shared, -1)
    scores = torch.bmm(each_tile, keys.reshape(products, TILE, head_dim).transpose(1, 2))
    weights = scores.view(products_shape)[:, :, :, :tokens]
    weights[:, hidden_from:].add_(mask)
    # exp takes ten to a hundred times as long where it gives 0 or a denormal number.
    weights.sub_(weights.amax(dim=(1, 5), keepdim=True)).clamp_(min=_LEAST_EXPONENT).exp_()
    functional.threshold(weights, _NEGLIGIBLE, 0.0, inplace=True)
    shares = weights.sum(-1, keepdim=True)
    # `scores` holds the weights now.
    parts = torch.bmm(scores, values.reshape(products, TILE, head_dim)).view(products_shape)[:, :, :, :tokens]
    total, share = parts[:, 0], shares[:, 0]
    for tile in range(1, tiles):
        total, share = total.add_(parts[:, tile]), share.add_(shares[:, tile])
    return total.div_(share)


def _by_head(query: torch.Tensor) -> torch.Tensor:
    """[n, QUERY_TOKENS, kv_heads, shared, head_dim] as float32 [n, kv_heads, QUERY_TOKENS, shared, head_dim],
    scaled by the root of head_dim."""
    return query.transpose(1, 2).contiguous().float().mul(query.shape[-1] ** -0.5)


def _by_token(attended: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`_by_head` the other way round, without the scale."""
    return attended.transpose(1, 2).to(dtype)


def _tiles(cache: torch.Tensor, slots: torch.Tensor, rows: int) -> torch.Tensor:
    """float32 [rows, tiles, kv_heads, TILE, head_dim] of one layer's cache."""
    read = cache.index_select(0, slots).view(rows, -1, TILE, *cache.shape[1:]).transpose(2, 3)
    return torch.empty(read.shape, dtype=torch.float32, device=cache.device).copy_(read)


def _first_tile(token: int, window: int | None) -> int:
    """The tile of the first key that a token sees."""
    return 0 if window is None else max(0, token - window + 1) // TILE


def _hidden(places: torch.Tensor, tokens: torch.Tensor, window: int | None) -> torch.Tensor:
    """float32, as the two broadcast: minus infinity for keys at `places` that tokens do not see, else 0."""
    is_hidden = places > tokens
    if window is not None:
        is_hidden |= places <= tokens - window
    return torch.zeros(is_hidden.shape, device=places.device).masked_fill_(is_hidden, float("-inf"))
