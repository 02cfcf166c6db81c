"""What many tests share: a real object store, the real small model, and surroundings without surprises."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from hypothesis import is_hypothesis_test

from headrace.demo.identity import Tls
from headrace.demo.model import prepare_smollm2
from headrace.demo.store import SeaweedStore, start_store
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from tests.downloads import cached_folder
from tests.identities import NOBODY, READER
from tests.profiles import use_profile

# On busy cores torch's threads would spin for each other. Read when torch is loaded, which nothing above does.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Beginnings of the variables that a developer's own clouds and settings are named by.
_CLOUDS = (
    "AWS_",
    "HEADRACE_",
    "RUNAI_",
    "GOOGLE_",
    "GCE_",
    "CLOUDSDK_",
    "STORAGE_EMULATOR",
    "CLOUD_STORAGE_",
    "AZURE_",
    "IDENTITY_",
    "MSI_",
    "HF_",
    "HUGGING",
    "TRANSFORMERS_OFFLINE",
)

use_profile()  # before the tests are imported, whose settings build on it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every hypothesis test is a `property` test, so that nobody has to remember the mark."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No instance metadata, no settings of the developer's own cloud accounts, no cache of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_CLOUDS)]:
            patch.delenv(name)
        nowhere = tmp_path_factory.mktemp("no-aws-files")
        patch.setenv("AWS_CONFIG_FILE", str(nowhere / "config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "credentials"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("CLOUDSDK_CONFIG", str(nowhere))
        patch.setenv("NO_GCE_CHECK", "true")
        patch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # asks nothing of the machine
        patch.setenv("HF_HOME", str(nowhere))  # nobody's token
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("headrace-cache")))
        yield


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedStore]:
    """A running SeaweedFS without buckets; `environment()` has the variables that lead there.

    Starting and ending a store takes seconds: one of their own is for tests that do something to the store.
    """
    with start_store(tmp_path_factory.mktemp("seaweed"), identities=[READER, NOBODY]) as store:
        yield store


@pytest.fixture(scope="session")
def loopback_tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate for 127.0.0.1, in one file with the CA that signed it."""
    folder = tmp_path_factory.mktemp("tls")
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for pem in (*certificate.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(str(tls.certificate), append=True)
    certificate.private_key_pem.write_to_path(str(tls.key))
    return tls


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as a checkpoint folder (bf16, one file). Read-only by agreement."""
    return cached_folder("smollm2-135m-instruct", prepare_smollm2)


@pytest.fixture(scope="session")
def smollm2_uri(seaweed: SeaweedStore, smollm2_folder: Path) -> str:
    """The real model in the store; reach it with seaweed.environment()."""
    uri = "s3://models/smollm2-135m-instruct"
    files = find_files(smollm2_folder).files
    settings = resolve_s3_settings(seaweed.environment())
    upload_files(files, parse_source(uri), settings, create_bucket=True)
    return uri
