"""Credentials that a caller hands over for one call: every request of it is signed with them, by one resolver."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.source.uri import ModelSource
from headrace.store.base import Store, open_store
from headrace.store.s3.credentials import ANONYMOUS_VARIABLES

if TYPE_CHECKING:
    from headrace.store.gcs.settings import GcsSettings
    from headrace.store.s3.settings import S3Settings

# Each field's variable; the first one is that which the resolver asks first.
_VARIABLES = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}


def names_given(credentials: object | None) -> dict[str, str]:
    """What the resolver is to call the variables that `environment_with` puts fields into. Raises BadCredentials."""
    given = set(_fields_of(credentials))
    if given & {"access_key_id", "secret_access_key"}:
        given |= {"access_key_id", "secret_access_key", "session_token"}
    return {_VARIABLES[name][0]: f"{name} of s3_credentials" for name in given}


class BadCredentials(HeadraceError):
    """Credentials in a form that cannot be understood."""


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Run:ai's fields. What is None comes from the environment; a key pair brings its own session token, or none."""

    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region_name: str | None = None
    endpoint: str | None = None


def environment_with(credentials: object | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment as the resolver is to see it, with the fields of any object that has them put over it.

    Raises BadCredentials for an object without these fields, and for a field that is no text.
    """
    result = dict(environ)
    given = _fields_of(credentials)
    if "access_key_id" in given or "secret_access_key" in given:
        # A key pair is one whole: nothing of another principal is mixed in.
        for name in ("access_key_id", "secret_access_key", "session_token"):
            result.pop(_VARIABLES[name][0], None)
        for variable in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", *ANONYMOUS_VARIABLES):
            result.pop(variable, None)
    for name, value in given.items():
        for variable in _VARIABLES[name]:
            result.pop(variable, None)
        result[_VARIABLES[name][0]] = value
    return result


def _fields_of(credentials: object | None) -> dict[str, str]:
    """The fields that are given. What is refused is never shown: it may be the secret."""
    if credentials is None:
        return {}
    if not any(hasattr(credentials, name) for name in _VARIABLES):
        raise BadCredentials(
            f"s3_credentials is a {type(credentials).__name__}, which has none of the fields of credentials.",
            remedy=f"Give headrace.S3Credentials({', '.join(f'{name}=…' for name in _VARIABLES)}).",
        )
    given: dict[str, str] = {}
    for name in _VARIABLES:
        value = getattr(credentials, name, None)
        if value is not None and not isinstance(value, str):
            raise BadCredentials(
                f"{name} in s3_credentials is a {type(value).__name__}, which is no text.",
                remedy="Give the text itself, or None for what the environment says.",
            )
        if value:
            given[name] = value
    return given


class Places:
    """Opens stores for one call; all of S3's share one resolver, and all of Google's one token."""

    def __init__(self, credentials: object | None = None) -> None:
        self._credentials = credentials
        self._settings: S3Settings | None = None
        self._gcs_settings: GcsSettings | None = None

    def open(self, source: ModelSource) -> Store:
        """The store that a source names. Raises StoreError for settings that cannot work."""
        if source.scheme == "gs":
            from headrace.store.gcs.settings import resolve_gcs_settings
            from headrace.store.gcs.store import GcsStore

            self._gcs_settings = self._gcs_settings or resolve_gcs_settings()
            return GcsStore(source, self._gcs_settings)
        if source.scheme != "s3":
            return open_store(source)
        from headrace.store.s3.settings import resolve_s3_settings
        from headrace.store.s3.store import S3Store

        if self._settings is None:
            self._settings = resolve_s3_settings(
                environment_with(self._credentials), names_given(self._credentials)
            )
        return S3Store(source, self._settings)
