"""The text side of a model: built once, in a worker thread, from what the engine sends while weights move."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError
from headrace.ipc.messages import ModelInfo
from headrace.server.openai.sampling import SamplingDefaults, model_defaults

if TYPE_CHECKING:
    from headrace.text.chat_template import ChatTemplate
    from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the routes need of a model.

    Attributes:
        template: None for a model without one; `template_problem` says then why chat is refused.
        defaults: sampling values where a request gives none.
        context_length: tokens that one request may take, prompt and answer.
        vocab_size: token ids of a prompt must be below it.
        config: config.json, parsed.
    """

    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"
    template_problem: str
    defaults: SamplingDefaults
    context_length: int
    vocab_size: int
    config: dict[str, Any]


def build_served_model(info: ModelInfo, *, chat_template: str | None, sampling_defaults: str) -> ServedModel:
    """Build it; takes up to a second for a large vocabulary.

    `chat_template` is a Jinja template that replaces the model's own. Raises HeadraceError for files of the
    model that are malformed.
    """
    from headrace.text.chat_template import ChatTemplate
    from headrace.text.tokenizer import Tokenizer

    config = _json_object(info.config, "config.json")
    tokenizer = Tokenizer.from_files(info.tokenizer_files, model_type=config.get("model_type"))
    _ = tokenizer.pieces, tokenizer.special_ids  # made here, so that no request waits for them
    template, problem = None, ""
    try:
        template = ChatTemplate.from_files(info.tokenizer_files, override=chat_template)
    except HeadraceError as error:
        if chat_template is not None:
            raise  # the operator's own choice: better no start than a chat that never works
        problem = str(error)
    defaults = SamplingDefaults()
    if sampling_defaults == "model" and info.generation_config:
        defaults = model_defaults(_json_object(info.generation_config, "generation_config.json"))
    return ServedModel(
        tokenizer=tokenizer,
        template=template,
        template_problem=problem,
        defaults=defaults,
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        config=config,
    )


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise HeadraceError(
            f"{name} is not a JSON object: {error}.", remedy="Upload the model's file again."
        ) from None
