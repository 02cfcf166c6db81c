"""What one step computes, as the forward pass sees it.

Tokens of all requests lie in one row: first the prompt chunks one after another, then one token of each
decoding request. The KV cache is a row of slots; a request's tokens may lie in any slots.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """One request's prompt chunk: rows [start, start + length) of the step.

    Attributes:
        context_slots: int64 [context]; the KV slots of all tokens so far, this chunk's included, in order.
            The chunk is the last `length` of them.
        prompt_length: tokens of the request's whole prompt, on which the angles of some rotary scalings depend;
            None where the chunk ends it.
    """

    start: int
    length: int
    context_slots: torch.Tensor
    prompt_length: int | None = None


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step.

    Attributes:
        input_ids: int64 [tokens].
        positions: int64 [tokens]; position of each token in its own request.
        write_slots: int64 [tokens]; where each token's key and value go.
        prefills: the prompt chunks, in row order.
        decode_slots: int64 [decodes, longest]; the KV slots of each decoding request's tokens, the new one
            included, padded on the right with any valid slot; the last `decodes` rows of the step are theirs.
        decode_lengths: int64 [decodes]; how many of each row of decode_slots count.
        logit_rows: int64 [wanted]; the rows whose logits are wanted.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    prefills: tuple[PrefillSpan, ...]
    decode_slots: torch.Tensor
    decode_lengths: torch.Tensor
    logit_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, in slots that the engine's pool hands out.

    Attributes:
        keys, values: one [slots, kv_heads, head_dim] tensor a layer, in the model's dtype, zeros at first.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
