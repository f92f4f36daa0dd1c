"""What `fastdedup deploy` prints, checked as far as that can be done without the system that takes it."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

import fastdedup.cli.main
from fastdedup import Dedup, LocalLRU
from fastdedup.events import ConsumerPaused, DeadLettered, Degraded, Shortfall
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.redis_streams import Consumer, entry_id
from fastdedup.sidecar.counters import Counters
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.checked import split_address
from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.service.deploy import FILES, printed
from fastdedup.sidecar.service.metrics import Exposition

FOLDER = files("fastdedup.sidecar.service.deploy")


def text_of(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


def parsed(words: list[str]) -> click.Context:
    """Parse a command line of ours as click would, and run nothing."""
    name, *options = words
    command = fastdedup.cli.main.cli.get_command(click.Context(fastdedup.cli.main.cli), name)
    assert command is not None, f"there is no command {name}"
    return command.make_context(name, options, resilient_parsing=False)


@pytest.mark.parametrize("what", FILES)
def test_the_files_are_printed(what: str) -> None:
    result = CliRunner().invoke(fastdedup.cli.main.cli, ["deploy", what])
    assert result.exit_code == 0
    assert result.stdout == printed(what)
    assert all(text_of(name) in result.stdout for name in FILES[what])


def test_what_is_not_there_is_refused() -> None:
    assert CliRunner().invoke(fastdedup.cli.main.cli, ["deploy", "nomad"]).exit_code == 2


# systemd

KEYS = {
    "Unit": "Description Requires After Wants",
    "Socket": "ListenStream SocketUser SocketGroup SocketMode DirectoryMode RemoveOnStop",
    "Service": "Type NotifyAccess User Group ExecStart ExecReload Restart RestartSec TimeoutStopSec LimitNOFILE"
    " NoNewPrivileges ProtectSystem ProtectHome PrivateTmp PrivateDevices ProtectKernelTunables ProtectKernelModules"
    " ProtectControlGroups RestrictAddressFamilies RestrictNamespaces RestrictRealtime LockPersonality"
    " CapabilityBoundingSet",
    "Install": "WantedBy",
}


def unit(name: str) -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=True)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text_of(name))
    return found


@pytest.mark.parametrize("name", FILES["systemd"])
def test_a_unit_has_known_sections_and_keys(name: str) -> None:
    found = unit(name)
    for section in found.sections():
        assert set(found[section]) <= set(KEYS[section].split())
    assert found["Install"]["WantedBy"]


def test_service_and_socket_fit_each_other_and_the_sidecar() -> None:
    service, listens = unit("fastdedup.service"), unit("fastdedup.socket")
    assert listens["Socket"]["ListenStream"] == "/run/fastdedup/fastdedup.sock"
    assert listens["Socket"]["SocketMode"] == "0660"
    assert listens["Socket"]["SocketUser"] == service["Service"]["User"]
    assert service["Unit"]["Requires"] == "fastdedup.socket"
    assert service["Service"]["Type"] == "notify"
    program, *words = shlex.split(service["Service"]["ExecStart"])
    assert Path(program).name == "fastdedup"
    assert parsed(words).params["log_format"] == "json"
    assert float(service["Service"]["TimeoutStopSec"]) > load(environment=False).grace


def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    for name in FILES["systemd"]:
        # Its program must exist; that of the unit is where it is to be installed.
        text = text_of(name).replace("/opt/fastdedup/bin/fastdedup", "/bin/true")
        (tmp_path / name).write_text(re.sub(r"(?m)^(User|Group|SocketUser|SocketGroup)=.*", r"\1=root", text))
    if verify is None:
        return  # sections and keys are checked above
    units = [str(tmp_path / name) for name in FILES["systemd"]]
    done = subprocess.run(
        [verify, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "fastdedup" in line]
    assert ours == []


# Docker


def instructions() -> Iterator[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", text_of("Dockerfile"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_dockerfile_has_known_instructions_and_copies_nothing_that_is_not_there() -> None:
    found = list(instructions())
    assert found[0][0] == "FROM"
    known = "FROM RUN USER ENV VOLUME STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD COPY"
    assert all(name in known for name, _ in found)
    root = Path(__file__).parents[2]
    for source in (word for name, rest in found if name == "COPY" for word in rest.split()[:-1]):
        assert (root / source).exists()


def test_the_dockerfile_runs_the_sidecar_as_no_root_and_stops_it_gently() -> None:
    found = dict(instructions())
    assert not found["USER"].startswith(("0", "root"))
    assert found["STOPSIGNAL"] == "SIGTERM"
    environment = dict(pair.split("=", 1) for pair in found["ENV"].split())
    assert environment["FASTDEDUP_SOCKET"].startswith(found["VOLUME"])
    words = [*yaml.safe_load(found["ENTRYPOINT"]), *yaml.safe_load(found["CMD"])]
    assert words[0] == "fastdedup"
    parsed(words[1:])
    health = yaml.safe_load(found["HEALTHCHECK"].partition(" CMD ")[2])
    assert health[0] == "fastdedup"
    parsed(health[1:])


def test_its_settings_are_ones_that_the_sidecar_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(pair.split("=", 1) for pair in dict(instructions())["ENV"].split())
    for name, value in environment.items():
        if name.startswith("FASTDEDUP_"):
            monkeypatch.setenv(name, value)
    config = load()
    assert (str(config.socket), config.log_format) == ("/run/fastdedup/fastdedup.sock", "json")


def test_the_commands_of_its_layers_are_shell() -> None:
    shell = shutil.which("sh")
    assert shell
    for _, command in (pair for pair in instructions() if pair[0] == "RUN"):
        subprocess.run([shell, "-n", "-c", command], timeout=60, check=True)
    assert "'fastdedup[sidecar]'" in text_of("Dockerfile")


# Kubernetes

SHAPE: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "terminationGracePeriodSeconds": int,
        "securityContext": {"fsGroup": int},
        "initContainers": ["container"],
        "containers": ["container"],
        "volumes": [{"name": str, "emptyDir": {"medium": str, "sizeLimit": str}}],
    },
}
PROBE = {"exec": {"command": [str]}, "periodSeconds": int, "timeoutSeconds": int, "failureThreshold": int}
CONTAINER: dict[str, Any] = {
    "name": str,
    "image": str,
    "restartPolicy": str,
    "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
    "ports": [{"name": str, "containerPort": int}],
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"memory": str}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}


def misfits(value: Any, shape: Any, path: str = "") -> list[str]:
    """Where a manifest departs from the part of Kubernetes' schema that it uses."""
    shape = CONTAINER if shape == "container" else shape
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [path]
        unknown = [f"{path}.{key}" for key in value.keys() - shape.keys()]
        return unknown + [
            found
            for key in value.keys() & shape.keys()
            for found in misfits(value[key], shape[key], f"{path}.{key}")
        ]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [path]
        return [
            found
            for number, each in enumerate(value)
            for found in misfits(each, shape[0], f"{path}[{number}]")
        ]
    return [] if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)) else [path]


@pytest.fixture
def pod() -> Any:
    return yaml.safe_load(text_of("sidecar.yaml"))


def test_the_manifest_has_the_shape_of_a_pod(pod: Any) -> None:
    assert misfits(pod, SHAPE) == []
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")


def test_the_sidecar_is_a_native_one_and_shares_its_socket(pod: Any) -> None:
    (sidecar,), (app,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["volumeMounts"] == app["volumeMounts"]
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == [sidecar["volumeMounts"][0]["name"]]
    settings = {each["name"]: each.get("value") for each in sidecar["env"]}
    assert settings["FASTDEDUP_SOCKET"].startswith(sidecar["volumeMounts"][0]["mountPath"] + "/")
    assert {"name": "FASTDEDUP_SOCKET", "value": settings["FASTDEDUP_SOCKET"]} in app["env"]
    port = split_address(settings["FASTDEDUP_METRICS_ADDRESS"])[1]
    assert sidecar["ports"] == [{"name": "metrics", "containerPort": port}]
    group = pod["spec"]["securityContext"]["fsGroup"]
    assert sidecar["securityContext"]["runAsGroup"] == app["securityContext"]["runAsGroup"] == group
    assert pod["spec"]["terminationGracePeriodSeconds"] > load(environment=False).grace


def test_its_commands_and_settings_are_ones_that_we_have(pod: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (sidecar,) = pod["spec"]["initContainers"]
    parsed(sidecar["args"])
    for probe in ("startupProbe", "livenessProbe"):
        program, *words = sidecar[probe]["exec"]["command"]
        assert program == "fastdedup"
        parsed(words)
    for each in sidecar["env"]:
        monkeypatch.setenv(each["name"], each.get("value", "redis://localhost:6379/0"))
    assert load().namespace == "shop"


# Monitoring: rules and dashboard ask for figures and labels that there are, so that each can fire


OF_PROMETHEUS = {"job", "instance"}
METRIC = re.compile(r"\b(?:fastdedup|process)_[a-z_]+\b")
SELECTED = re.compile(r"((?:fastdedup|process)_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)[^}]*?((?:fastdedup|process)_[a-z_]+)")


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """The labels of each figure, by its name."""
    counters = Counters()
    namespaces = Namespaces(
        Dedup("memory://", codec=RawCodec(), on_unavailable=LocalLRU()), counters=counters
    )
    counters.observe("fastdedup", "claim", "acquired", 0.1)
    counters.on_event(Degraded("fastdedup", "claim", True, "down"))
    counters.on_event(Shortfall("fastdedup", "claim", "k", 1))
    counters.on_event(DeadLettered("orders", "k", "failed", 5, "ValueError"))  # of a program's consumers
    counters.on_event(ConsumerPaused("orders", "down"))
    labels: dict[str, set[str]] = {}
    registry = CollectorRegistry()
    watch(Consumer(Redis(), Dedup("memory://"), stream="s", group="g", key=entry_id), registry=registry)
    text = Exposition(namespaces).render().decode().removesuffix("# EOF\n")
    for family in text_string_to_metric_families(text + generate_latest(registry).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(printed("prometheus"))["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed("grafana"))["panels"]
    return found


def asked() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (each["query"] for each in json.loads(printed("grafana"))["templating"]["list"])


def test_every_metric_that_is_asked_for_exists(shown: dict[str, set[str]]) -> None:
    names = {name for text in asked() for name in METRIC.findall(text)}
    assert len(names) > 15
    assert not names - shown.keys()


def test_every_label_that_is_asked_for_exists(shown: dict[str, set[str]]) -> None:
    asks = [
        (name, re.findall(r"(\w+)\s*[=!]", inner))
        for text in asked()
        for name, inner in SELECTED.findall(text)
    ]
    asks += [(name, inner.split(", ")) for text in asked() for inner, name in GROUPED.findall(text)]
    assert len(asks) > 30
    assert not [(name, label) for name, labels in asks for label in set(labels) - shown[name] - OF_PROMETHEUS]


def test_every_alert_says_what_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_panels_lie_side_by_side() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for one, other in combinations((panel["gridPos"] for panel in panels()), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
        assert one["x"] + one["w"] <= 24
