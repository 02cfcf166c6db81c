"""Bring a tokenizer that was read from tokenizer.json to what transformers makes of the same folder.

transformers 5 rebuilds the pipelines of some classes from the vocabulary alone. That is followed for Llama, where it
mends what older files do. For the others (GPT2Tokenizer, Qwen2Tokenizer) tokenizer.json is what the model was trained
with: rebuilding SmolLM2's, for one, would lose its rule that digits stand alone.
"""

from dataclasses import replace

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.text.tokenizer_config import AddedTokenSpec, TokenizerConfig

# transformers reads these model types with the pipeline in tokenizer.json, whatever tokenizer_class they name.
_KEEP_OWN_PIPELINE = frozenset(
    {"internlm2", "internlm3", "minicpm3", "ministral", "mistral", "mixtral", "nemotron", "phi3", "phimoe"}
)


def apply_config(
    backend: tokenizers.Tokenizer, config: TokenizerConfig, *, keep_pipeline: bool, model_type: str | None
) -> None:
    """Change `backend` in place: added tokens, pipeline (unless it is to be kept), no truncation, no padding."""
    backend.no_truncation()
    backend.no_padding()
    if (
        config.tokenizer_class == "LlamaTokenizer"
        and not keep_pipeline
        and model_type not in _KEEP_OWN_PIPELINE
    ):
        _use_llama_pipeline(backend, config)
    missing = _tokens_to_add(backend, config)
    if missing:
        backend.add_tokens(missing)


def _tokens_to_add(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> list[tokenizers.AddedToken]:
    """Tokens that are new, or become special; a token that is there keeps its id and its other fields."""
    there = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    named = set(config.named_tokens.values())
    added = [replace(token, special=token.special or token.content in named) for token in config.added_tokens]
    to_add = {token.content: _added_token(token) for token in added}
    if not config.added_tokens_are_listed:
        # Then tokenizer.json's own list takes its place, and a named token in it is special.
        for content in named & there.keys():
            to_add[content] = tokenizers.AddedToken(content, special=True)
    for token in config.special_tokens:
        if token.content not in there:
            to_add.setdefault(token.content, _added_token(token))
    return list(to_add.values())


def _added_token(token: AddedTokenSpec) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _use_llama_pipeline(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """transformers' LlamaTokenizer keeps vocabulary, merges and post-processor and builds the rest itself.

    The difference shows after a special token in the middle of a text, where older tokenizer.json files
    (the "legacy" behaviour) add a space that the model was not trained with.
    """
    model = backend.model
    if not isinstance(model, models.BPE):
        return
    model.byte_fallback = True
    model.unk_token = None
    prefix_space = config.add_prefix_space is not False
    scheme = "never" if not prefix_space else "always" if config.legacy else "first"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
