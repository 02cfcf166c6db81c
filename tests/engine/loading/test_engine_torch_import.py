"""An engine's torch: it computes, and what it left out comes to whoever asks for it. Each in a process of its own."""

import subprocess
import sys

BEGIN = "import sys; from headrace.engine.loading.torch_import import import_torch; import_torch(); import torch\n"


def run(code: str, begin: str = BEGIN) -> str:
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_imported_without_its_rules_for_meta_tensors() -> None:
    assert run(
        "print('torch._meta_registrations' in sys.modules, hasattr(torch, '_meta_registrations'))"
    ) == ("False False\n")


def test_random_numbers_can_be_drawn_from_a_stream_of_ones_own() -> None:
    draw = "print(torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist())\n"
    assert run(draw) == run(draw, begin="import torch\n")


def test_what_was_left_out_is_imported_for_whoever_names_it() -> None:
    said = run(
        "import torch._meta_registrations\n"
        "a = torch.empty((3, 4), device='meta')\n"
        "print(torch.rand(1, generator=torch.Generator()).shape, end=' ')\n"
        "print(torch.nn.functional.scaled_dot_product_attention(*[a.view(1, 1, 3, 4)] * 3).shape)\n"
    )
    assert said == "torch.Size([1]) torch.Size([1, 1, 3, 4])\n"


def test_whoever_has_imported_torch_keeps_it_as_it_is() -> None:
    code = "import torch; before = torch._meta_registrations\n" + BEGIN
    assert run(code + "print(sys.modules['torch._meta_registrations'] is before)", begin="") == "True\n"


def test_a_version_that_is_not_known_is_imported_whole() -> None:
    begin = (
        "import headrace.engine.loading.torch_import as module\nmodule._KNOWN_VERSION = 'another'\n" + BEGIN
    )
    assert run("print('torch._meta_registrations' in sys.modules)", begin=begin) == "True\n"
