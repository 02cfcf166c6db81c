"""From the bytes of a request to its typed form, with an error that says which field is wrong."""

import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from headrace.server.errors import ApiError, invalid

T = TypeVar("T")

# What is read and thrown away of a body over the limit, so that the answer reaches a client that is
# still sending; closing with unread bytes would reset the connection under it.
_DISCARDED_BYTES_AT_MOST = 64 << 20

VALUES_AT_MOST = 1 << 20

_FIELD = re.compile(r" - at `\$\.?([^`.\[]*)")


async def read_json_object(request: Request, limit_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError (400, 413, 415) and starlette's ClientDisconnect."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(
            415,
            f"The body's Content-Type is {content_type[:100]}; send application/json.",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            f"The body has the Content-Encoding {encoding[:100]}, which is not supported; send it uncompressed.",
            code="unsupported_media_type",
        )
    data = await _read_within(request, limit_bytes)
    _refuse_too_many_values(data)
    try:
        body = msgspec.json.decode(data)
    except RecursionError:
        raise invalid("The body is not usable JSON: it is nested too deeply.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise invalid(f"The body must be a JSON object, not {_json_name(body)}.", code="invalid_json")
    return body


def parse(body: dict[str, Any], kind: type[T]) -> T:
    """The body as a request type; unknown fields are passed over. Raises ApiError 400 naming the field."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        missing = re.search(r"missing required field `([^`]+)`", text)
        field = _FIELD.search(text)
        param = missing.group(1) if missing and field is None else field.group(1) if field else None
        raise invalid(f"{text}.", param or None, "invalid_value") from None


async def _read_within(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = declared.isdigit() and int(declared) > limit_bytes
    if too_large and request.headers.get("expect", "").lower() == "100-continue":
        raise _body_too_large(limit_bytes)  # the client waits for our leave and has sent nothing
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if too_large or size > limit_bytes:
            too_large = True
            chunks.clear()
            if size > limit_bytes + _DISCARDED_BYTES_AT_MOST:
                break
        else:
            chunks.append(chunk)
    if too_large:
        raise _body_too_large(limit_bytes)
    return b"".join(chunks)


def _refuse_too_many_values(data: bytes) -> None:
    """Raises ApiError 413. Text costs next to nothing to decode, but millions of values hold the server up for seconds.

    Counted by what separates and opens values outside of strings.
    """
    if len(data) < VALUES_AT_MOST:
        return
    values = data.count(b'"') // 2
    if values <= VALUES_AT_MOST:
        unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        outside = b"".join(unescaped.split(b'"')[::2])
        values = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    if values > VALUES_AT_MOST:
        raise ApiError(
            413,
            f"The body holds more than {VALUES_AT_MOST} numbers, strings and other values. Send fewer prompts or "
            "token ids at a time.",
            code="request_too_large",
        )


def _body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than this server's limit of {limit_bytes} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _json_name(value: object) -> str:
    if value is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
