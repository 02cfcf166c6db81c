"""Request fields that peers honour and this server does not yet: only the values that mean "off" pass."""

from collections.abc import Mapping
from typing import Any

from headrace.server.errors import not_supported_yet

# Field → the values that ask for nothing. null always does.
_SAMPLING: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "stop_regex": ("", []),
    "no_stop_trim": (False,),
    "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_logprobs": (),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "lora_path": (),
    "session_params": ({},),
}

COMPLETION_OFF_VALUES: dict[str, tuple[Any, ...]] = _SAMPLING | {
    "suffix": ("",),
    "prompt_embeds": (),
    "add_special_tokens": (True,),
}

CHAT_OFF_VALUES: dict[str, tuple[Any, ...]] = _SAMPLING | {
    "best_of": (1,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "input_ids": (),
    "chat_template": (),
    "documents": ([],),
    "add_special_tokens": (False,),
    "thinking": (),
}


def refuse_unsupported(body: Mapping[str, Any], off_values: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises a 400 that names the first field of `body` whose value asks for something not honoured."""
    for name, value in body.items():
        if value is None or name not in off_values:
            continue
        if not any(_same(value, off) for off in off_values[name]):
            raise not_supported_yet(name, _short(value))


def _same(value: Any, off: Any) -> bool:
    # 0 == False and 1 == True: a number may stand for a number only.
    return value == off and isinstance(value, bool) == isinstance(off, bool)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:40] + "…"
