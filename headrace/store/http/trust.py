"""Whom to trust in TLS and who to be: CA certificates, a client certificate, and the switch that checks nothing."""

import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.store.errors import BadEndpoint

INSECURE_VARIABLE = "HEADRACE_INSECURE_TLS"
CLIENT_CERTIFICATE_VARIABLE = "HEADRACE_CLIENT_CERT"
CLIENT_KEY_VARIABLE = "HEADRACE_CLIENT_KEY"
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Trust:
    """How the other end's certificate is judged, and which one of our own is shown.

    Attributes:
        ca_bundle: a file of CA certificates that counts instead of the system's.
        ca_variable: the setting that names such a file, for a message.
        client_certificate, client_key: files in PEM form; without a key file it is in the certificate's.
        insecure: take any certificate.
    """

    ca_bundle: str | None = None
    ca_variable: str = "SSL_CERT_FILE"
    client_certificate: str | None = None
    client_key: str | None = None
    insecure: bool = False

    @property
    def authorities(self) -> str:
        """Whose signature counts, for a message."""
        return self.ca_bundle or os.environ.get("SSL_CERT_FILE") or "the system's CA certificates"


SYSTEM_TRUST = Trust()


def resolve_trust(
    environ: Mapping[str, str], *, bundle: str = "", bundle_from: str = "", ca_variable: str = "SSL_CERT_FILE"
) -> Trust:
    """The settings that the environment asks for.

    Without a bundle REQUESTS_CA_BUNDLE counts, then what OpenSSL itself finds: SSL_CERT_FILE, SSL_CERT_DIR and
    the system's certificates.

    Args:
        bundle, bundle_from: a file of CA certificates that the store's own settings name, and which one does.
        ca_variable: the setting that a message recommends.

    Raises BadEndpoint for a file that does not exist, a key without a certificate or a switch that is neither.
    """
    if not bundle:
        bundle_from, bundle = "REQUESTS_CA_BUNDLE", environ.get("REQUESTS_CA_BUNDLE", "").strip()
        if bundle and ca_variable == "SSL_CERT_FILE":
            ca_variable = bundle_from  # which goes before it
    certificate = environ.get(CLIENT_CERTIFICATE_VARIABLE, "").strip()
    key = environ.get(CLIENT_KEY_VARIABLE, "").strip()
    if key and not certificate:
        raise BadEndpoint(
            CLIENT_KEY_VARIABLE,
            f"It is set, {CLIENT_CERTIFICATE_VARIABLE} is not.",
            remedy="Name the certificate that belongs to the key, or unset it.",
        )
    return Trust(
        _existing(bundle, "CA bundle", bundle_from),
        ca_variable,
        _existing(certificate, "client certificate", CLIENT_CERTIFICATE_VARIABLE),
        _existing(key, "client key", CLIENT_KEY_VARIABLE),
        _switch(environ.get(INSECURE_VARIABLE, "")),
    )


def _existing(path: str, what: str, origin: str) -> str | None:
    if not path:
        return None
    if not os.path.isfile(path):  # noqa: PTH113 (pathlib is not needed before the first byte)
        wrong = "is a folder" if os.path.isdir(path) else "does not exist"  # noqa: PTH112
        raise BadEndpoint(path, f"The {what} from {origin} {wrong}.", remedy="Name a file, or unset it.")
    return path


def _switch(value: str) -> bool:
    word = value.strip().lower()
    if word not in (*_YES, *_NO):
        raise BadEndpoint(INSECURE_VARIABLE, f"It is {value!r:.40}, neither 1 nor 0.", remedy="Write 1 or 0.")
    return word in _YES


_contexts: dict[Trust, ssl.SSLContext] = {}
_contexts_lock = threading.Lock()


def tls_context(trust: Trust) -> ssl.SSLContext:
    """The process's one context for these settings. Raises BadEndpoint for a file that does not serve."""
    with _contexts_lock:
        if trust not in _contexts:
            _contexts[trust] = _make_context(trust)
        return _contexts[trust]


def _make_context(trust: Trust) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=trust.ca_bundle)
    except OSError as error:
        raise BadEndpoint(
            str(trust.ca_bundle),
            f"The CA bundle cannot be used: {error.strerror or error}.",
            remedy=f"{trust.ca_variable} must name a file of certificates in PEM form.",
        ) from None
    if trust.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if trust.client_certificate is not None:
        try:
            # A password that is given keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(trust.client_certificate, trust.client_key, password="")
        except OSError as error:
            reason = str(getattr(error, "reason", None) or error.strerror or error)
            raise BadEndpoint(
                trust.client_certificate,
                f"The client certificate cannot be used: {reason.replace('_', ' ').lower()}.",
                remedy=f"{CLIENT_CERTIFICATE_VARIABLE} must name a certificate in PEM form, and "
                f"{CLIENT_KEY_VARIABLE} its key without a password (unless it is in the same file).",
            ) from None
    return context
