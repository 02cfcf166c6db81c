"""Chat templates that lie in a folder of their own, as transformers writes them."""

import pytest

from headrace.text.chat_template import ChatTemplate, TemplateError

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def rendered(files: dict[str, bytes], **arguments: object) -> str:
    template = ChatTemplate.from_files(files)
    assert template is not None
    return template.render(MESSAGES, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["additional_chat_templates", "templates"])
def test_a_template_of_the_folder_is_found_by_its_name(folder: str) -> None:
    files = {"chat_template.jinja": b"plain", f"{folder}/tool_use.jinja": b"with tools"}
    assert rendered(files) == "plain"
    assert rendered(files, tools=TOOLS) == "with tools"


def test_of_two_templates_of_one_name_the_folders_counts_as_with_transformers() -> None:
    assert rendered({"chat_template.jinja": b"plain", "templates/default.jinja": b"folder's"}) == "folder's"


def test_the_default_in_tokenizer_config_stays_beside_a_folder() -> None:
    files = {
        "tokenizer_config.json": b'{"chat_template": "plain"}',
        "additional_chat_templates/tool_use.jinja": b"with tools",
    }
    assert rendered(files) == "plain"
    assert rendered(files, tools=TOOLS) == "with tools"


def test_a_folder_without_a_default_names_what_it_has() -> None:
    with pytest.raises(TemplateError, match=r"several chat templates \(rag\) and none is the default"):
        rendered({"additional_chat_templates/rag.jinja": b"x"})


def test_a_template_that_is_no_text_is_named() -> None:
    with pytest.raises(TemplateError, match=r"templates/rag\.jinja is not UTF-8"):
        rendered({"chat_template.jinja": b"x", "templates/rag.jinja": b"\xff"})
