"""What an engine that is started again after a change of weights is told to load."""

from headrace.ipc.options import EngineOptions
from headrace.server.weight_state import options_for

OLD, NEW = "s3://bucket/old", "s3://bucket/new"


def test_without_a_change_the_options_are_those_of_the_start() -> None:
    options = EngineOptions(model=OLD, load_format="dummy")
    assert options_for(options, OLD) is options


def test_after_a_change_it_is_the_new_model_with_the_tokenizer_of_the_start() -> None:
    options = options_for(EngineOptions(model=OLD, dtype="float32"), NEW)
    assert (options.model, options.tokenizer_path, options.dtype) == (NEW, OLD, "float32")


def test_a_tokenizer_of_its_own_place_stays_there() -> None:
    options = options_for(EngineOptions(model=OLD, tokenizer_path="s3://bucket/tokenizer"), NEW)
    assert (options.model, options.tokenizer_path) == (NEW, "s3://bucket/tokenizer")


def test_weights_that_took_the_place_of_random_ones_are_read() -> None:
    assert options_for(EngineOptions(model=OLD, load_format="dummy"), NEW).load_format == "auto"
