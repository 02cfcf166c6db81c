"""What deploy/ tells a cluster is what the server knows: flags, routes, folders, users, metrics, times."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
from headrace.cli.flags import API_KEY_VARIABLE
from headrace.cli.main import COMMANDS
from headrace.cli.parser import Parser
from headrace.cli.serve import serve_options
from headrace.server.app import ROUTES
from headrace.server.options import ServeOptions

DEPLOY = Path(headrace.__file__).parents[1] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def of_kind(kind: str) -> Any:
    (found,) = [manifest for manifest in map(read, MANIFESTS) if manifest["kind"] == kind]
    return found


def pod() -> Any:
    return of_kind("Deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (found,) = pod()["containers"]
    return found


def options_of(arguments: list[str]) -> ServeOptions:
    """What the server makes of a container's arguments; defaults of variables are filled in."""
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in arguments]
    parser = Parser(prog="headrace")
    subparsers = parser.add_subparsers(dest="command")
    for name in COMMANDS:
        importlib.import_module(f"headrace.cli.{name}").add_parser(subparsers)
    return serve_options(parser.parse_args(words), {})


def dockerfile(instruction: str) -> str:
    """The last one of its kind, with its continued lines."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.+)$", text, flags=re.MULTILINE)[-1]


def seconds(timespan: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", timespan).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_the_customization_takes_every_manifest_but_the_examples() -> None:
    named = read(KUBERNETES / "kustomization.yaml")["resources"]
    assert sorted(named) == [path.name for path in MANIFESTS if ".example." not in path.name]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_one_named_object_of_the_deployment_s_name(path: Path) -> None:
    manifest = read(path)
    assert set(manifest) - {"spec", "type", "stringData", "automountServiceAccountToken"} == {
        "apiVersion",
        "kind",
        "metadata",
    }
    assert manifest["metadata"]["name"] == "headrace-qwen"


def test_the_container_s_arguments_ask_for_what_there_is() -> None:
    options = options_of(container()["args"])
    assert options.notes == ()
    assert options.host == "0.0.0.0"
    (port,) = container()["ports"]
    assert port["containerPort"] == options.port


def test_probes_ask_routes_that_need_no_key_at_the_container_s_port() -> None:
    paths = {route.path for route in ROUTES if "GET" in (route.methods or ())}
    asked = {
        kind: container()[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {kind: ask["path"] for kind, ask in asked.items()} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }
    assert {ask["path"] for ask in asked.values()} <= paths
    assert {ask["port"] for ask in asked.values()} == {container()["ports"][0]["name"]}


def test_the_time_to_end_holds_the_pause_the_drain_and_the_end() -> None:
    pause_s = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = options_of(container()["args"]).shutdown_timeout_s
    # An engine has 5 s to end by itself, answers 3 s to leave.
    assert pod()["terminationGracePeriodSeconds"] >= pause_s + drain_s + 10


def test_the_pod_may_do_nothing_that_it_does_not_need() -> None:
    rights = pod()["securityContext"] | container()["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    user, group = dockerfile("USER").split(":")
    assert (rights["runAsUser"], rights["runAsGroup"]) == (int(user), int(group))


def test_what_is_written_is_mounted_in_the_pod_and_in_the_composition() -> None:
    cache = re.search(r"HEADRACE_CACHE=(\S+)", dockerfile("ENV"))
    assert cache
    written = {cache.group(1), "/tmp"}
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    assert set(mounts) == written
    assert {volume["name"] for volume in pod()["volumes"]} == set(mounts.values())
    service = read(DEPLOY / "compose.rustfs.yaml")["services"]["headrace"]
    assert service["read_only"] is True
    assert set(service["tmpfs"]) | {entry.partition(":")[2] for entry in service["volumes"]} == written


def test_memory_is_requested_as_it_is_limited() -> None:
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]


def test_selectors_find_the_pod() -> None:
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [of_kind("Service")["spec"]["selector"]]
    selectors += [
        of_kind(kind)["spec"]["selector"]["matchLabels"]
        for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor")
    ]
    assert [selector for selector in selectors if not selector.items() <= labels.items()] == []
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]
    assert of_kind("ServiceAccount")["metadata"]["name"] == pod()["serviceAccountName"]


def test_the_secret_holds_variables_that_the_server_reads() -> None:
    secret = of_kind("Secret")
    assert set(secret["stringData"]) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", API_KEY_VARIABLE}
    assert container()["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]


def test_metrics_are_scraped_where_they_are() -> None:
    annotations = of_kind("Deployment")["spec"]["template"]["metadata"]["annotations"]
    (endpoint,) = of_kind("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert annotations["prometheus.io/path"] == endpoint["path"] == "/metrics"
    assert annotations["prometheus.io/port"] == str(container()["ports"][0]["containerPort"])
    assert endpoint["port"] == container()["ports"][0]["name"]


def test_the_scaler_goes_by_a_metric_that_operations_md_tells_of() -> None:
    scaler = of_kind("HorizontalPodAutoscaler")["spec"]
    page = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"| `{scaler['metrics'][0]['pods']['metric']['name']}` |" in page
    assert scaler["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]


def test_the_composition_gives_the_drain_its_time_and_asks_for_readiness() -> None:
    service = read(DEPLOY / "compose.rustfs.yaml")["services"]["headrace"]
    options = options_of(service["command"])
    assert options.notes == ()
    assert seconds(service["stop_grace_period"]) >= options.shutdown_timeout_s + 10
    assert f"127.0.0.1:{options.port}/ready" in service["healthcheck"]["test"][-1]


def test_the_image_takes_all_that_the_build_reads() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        word
        for line in re.findall(r"^COPY ([^-].*)$", text, flags=re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert [name for name in copied if not (DEPLOY.parent / name).exists()] == []


def test_the_image_s_extras_are_those_of_the_package() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    wanted = re.search(r'^ARG EXTRAS="([^"]*)"', text, flags=re.MULTILINE)
    assert wanted
    project = (DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8")
    for extra in wanted.group(1).split(","):
        assert re.search(rf"^{extra} = \[", project, flags=re.MULTILINE), extra
