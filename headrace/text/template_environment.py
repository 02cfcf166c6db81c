"""The Jinja sandbox that chat templates run in: what transformers 5 offers them, and no more."""

import json
import math
import time
from collections.abc import Callable, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# Far more than any conversation needs (milliseconds), and an end for a template that has none.
RENDERING_S = 10.0
# Bytes, about; of a product or a power.
_RESULT_AT_MOST = 1 << 20

# When the rendering that runs in this thread must have ended (time.monotonic()).
_deadline_s: ContextVar[float] = ContextVar("deadline", default=math.inf)


class RefusedByTemplate(TemplateError):
    """A template's own `raise_exception`, or the end of the time or space that it is given; a sentence for a user."""


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training; here it only renders."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """`dict` without the attributes of a type, which would lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` without underscore names, which would lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *positional = args
        attributes: dict[str, Any] = dict(*positional, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold the name {name!r}, which begins with an underscore")


def _raise_exception(message: str) -> NoReturn:
    raise RefusedByTemplate(message)


def _strftime_now(template: str) -> str:
    return datetime.now().strftime(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Bounded(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end: in time, and without numbers and texts that grow without bound.

    The time is looked at in each turn of a loop, each call (of a macro, say) and each filter and test.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters = {name: _checking_time(function) for name, function in self.filters.items()}
        self.tests = {name: _checking_time(function) for name, function in self.tests.items()}

    def turn(self) -> str:
        """Called, and so checked, in each turn of a loop."""
        return ""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As the sandbox does; positional names are Jinja's, since a template may name its own `self`."""
        _check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """As the sandbox does, unless the result would be huge: it is made in one step that nothing can end."""
        if _result_size(operator, left, right) > _RESULT_AT_MOST:
            raise RefusedByTemplate(
                f"The model's chat template makes a value of more than {_RESULT_AT_MOST} bytes with `{operator}`."
            )
        return super().call_binop(context, operator, left, right)


class _BoundedTemplate(Template):
    """A template that is given so many seconds at each rendering."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        """As Jinja does. Raises RefusedByTemplate when the time is over."""
        before = _deadline_s.set(time.monotonic() + RENDERING_S)
        try:
            return super().render(*args, **kwargs)
        finally:
            _deadline_s.reset(before)


class _CheckingLoops(CodeGenerator):
    """Has `turn` called at the beginning of each loop's body."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Change the template before code is made of it."""
        for loop in list(node.find_all(nodes.For)):
            turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(turn, lineno=loop.lineno).set_environment(self.environment))
        super().visit_Template(node, frame)


def _checking_time(function: Any) -> Callable[..., Any]:
    @wraps(function)  # with Jinja's own marks
    def checking(*args: Any, **kwargs: Any) -> Any:
        _check_time()
        return function(*args, **kwargs)

    return checking


def _check_time() -> None:
    if time.monotonic() > _deadline_s.get():
        raise RefusedByTemplate(
            f"The model's chat template did not end within {RENDERING_S} s for these messages. Send fewer or "
            "shorter ones, or have the server started with another --chat-template."
        )


def _result_size(operator: str, left: Any, right: Any) -> float:
    """Bytes of the product or power, roughly; 0 where it cannot be large."""
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            return left.bit_length() * max(right, 0) / 8
        return 0
    for value, count in ((left, right), (right, left)):
        if isinstance(value, Sized) and isinstance(count, int):
            return len(value) * max(count, 0)
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() + right.bit_length()) / 8
    return 0


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment in which chat templates are compiled."""
    environment = _Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.code_generator_class = _CheckingLoops
    environment.template_class = _BoundedTemplate
    environment.filters["tojson"] = _checking_time(_to_json)
    del environment.globals["lipsum"]  # a filler text as long as it is told, made in one step
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _TemplateDict(),
        "namespace": _TemplateNamespace,
    }
    return environment
