"""Tokenizers of folders without tokenizer.json: a SentencePiece model, a tiktoken vocabulary, vocab.json with merges, or
Mistral's tekken.json.

Each becomes a tokenizer of the `tokenizers` library, so that everything after it is the same for all.
"""

from collections.abc import Mapping

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from headrace.text.sentencepiece_model import SENTENCEPIECE_FILE
from headrace.text.tekken_file import TEKKEN_FILE
from headrace.text.tiktoken_families import QWEN, family_of, find_tiktoken
from headrace.text.tokenizer_config import VOCABULARY_FILE, TokenizerConfig, read_json_object
from headrace.text.tokenizer_error import TokenizerError
from headrace.text.tokenizer_setup import apply_config

MERGES_FILE = "merges.txt"
_REMEDY = "Add a tokenizer.json (transformers' save_pretrained writes it) or name another tokenizer with --tokenizer-path."


def build_from_vocabulary(files: Mapping[str, bytes], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """The tokenizer of base name → content, special tokens as in `config` included.

    The BOS is added to a text as add_bos_token says; where the files are silent, if the SentencePiece model, the
    tiktoken family or tekken.json has one: their own programs do so (transformers 5 does not).

    Raises TokenizerError where nothing is a vocabulary, or what there is is malformed or not supported.
    """
    tiktoken_name = find_tiktoken(files)
    add_bos = "bos_token" in config.named_tokens
    try:
        if tiktoken_name is not None:
            backend = _tiktoken(tiktoken_name, files[tiktoken_name], config)
        elif SENTENCEPIECE_FILE in files:
            backend = _sentencepiece(files[SENTENCEPIECE_FILE], config)
        elif VOCABULARY_FILE in files and MERGES_FILE in files:
            backend, add_bos = _byte_level(files, config), False
        elif TEKKEN_FILE in files:
            from headrace.text.from_tekken import build_from_tekken

            backend = build_from_tekken(files[TEKKEN_FILE])
        else:
            there = ", ".join(sorted(files)) or "no tokenizer file at all"
            raise TokenizerError(f"The model has no tokenizer.json; there is: {there}.", remedy=_REMEDY)
    except TokenizerError:
        raise
    except Exception as error:
        # The library raises bare Exceptions for vocabularies that contradict themselves.
        raise TokenizerError(
            f"The tokenizer's vocabulary cannot be used: {error}.", remedy="Upload the model's files again."
        ) from error
    apply_config(backend, config, keep_pipeline=True, model_type=None)
    _check_ids(backend, config)
    if config.add_bos_token is not None:
        add_bos = config.add_bos_token
    _add_ends(backend, config, add_bos=add_bos, add_eos=config.add_eos_token or False)
    return backend


def _sentencepiece(content: bytes, config: TokenizerConfig) -> tokenizers.Tokenizer:
    from headrace.text.from_sentencepiece import build_from_sentencepiece

    is_llama = config.tokenizer_class == "LlamaTokenizer"
    return build_from_sentencepiece(
        content,
        legacy=bool(config.legacy) if is_llama else config.legacy is not False,
        prefix_space=config.add_prefix_space if is_llama else None,
        names={token.token_id: token.content for token in config.added_tokens if token.token_id is not None},
    )


def _tiktoken(name: str, content: bytes, config: TokenizerConfig) -> tokenizers.Tokenizer:
    from headrace.text.from_tiktoken import build_from_tiktoken

    family = family_of(name, content, config.tokenizer_class)
    if family is None:
        raise TokenizerError(
            f"{name} is a tiktoken vocabulary of a model whose way to cut text is not known here (tokenizer_class "
            f"{config.tokenizer_class or 'not given'}); known are Llama 3's and Qwen's.",
            remedy=_REMEDY,
        )
    names = {token.token_id: token.content for token in config.added_tokens if token.token_id is not None}
    return build_from_tiktoken(content, name, family, names)


def _byte_level(files: Mapping[str, bytes], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """As GPT2Tokenizer and Qwen2Tokenizer of transformers build it."""
    if config.tokenizer_class not in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        raise TokenizerError(
            f"{VOCABULARY_FILE} and {MERGES_FILE} do not say how text is cut, and tokenizer_class is "
            f"{config.tokenizer_class or 'not given'}; known are GPT2Tokenizer and Qwen2Tokenizer.",
            remedy=_REMEDY,
        )
    backend = tokenizers.Tokenizer(
        models.BPE(read_json_object(files, VOCABULARY_FILE), _read_merges(files[MERGES_FILE]))
    )
    prefix_space = bool(config.add_prefix_space)
    if config.tokenizer_class == "GPT2Tokenizer":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    else:
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
            ]
        )
    backend.decoder = decoders.ByteLevel()
    return backend


def _read_merges(content: bytes) -> list[tuple[str, str]]:
    merges = []
    # Not splitlines(): tokens may hold other characters that end a line in Unicode.
    for number, line in enumerate(content.decode().split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise TokenizerError(
                f"Line {number} of {MERGES_FILE} is not a pair of tokens.",
                remedy="Upload the model's file again.",
            )
        merges.append((parts[0], parts[1]))
    return merges


def _check_ids(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    for token in config.added_tokens:
        token_id = backend.token_to_id(token.content)
        if token.token_id is not None and token_id != token.token_id:
            raise TokenizerError(
                f"The added token {token.content!r} should have the id {token.token_id}; after this vocabulary it "
                f"gets {token_id}.",
                remedy=_REMEDY,
            )


def _add_ends(
    backend: tokenizers.Tokenizer, config: TokenizerConfig, *, add_bos: bool, add_eos: bool
) -> None:
    bos = config.named_tokens.get("bos_token") if add_bos else None
    eos = config.named_tokens.get("eos_token") if add_eos else None
    if bos is None and eos is None:
        return
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    ends = {token: backend.token_to_id(token) for token in (bos, eos) if token}
    backend.post_processor = processors.TemplateProcessing(
        single=template, pair=None, special_tokens=list(ends.items())
    )
