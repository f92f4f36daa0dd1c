"""The alert rules and the dashboard ask for figures and labels that there are, so that each can fire."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from fastdedup import Dedup, LocalLRU
from fastdedup.events import ConsumerPaused, DeadLettered, Degraded, Shortfall
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.redis_streams import Consumer, entry_id
from fastdedup.sidecar.counters import Counters
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.deploy import printed
from fastdedup.sidecar.service.metrics import Exposition

OF_PROMETHEUS = {"job", "instance"}
METRIC = re.compile(r"\b(?:fastdedup|process)_[a-z_]+\b")
SELECTED = re.compile(r"((?:fastdedup|process)_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)[^}]*?((?:fastdedup|process)_[a-z_]+)")


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """The labels of each figure, by its name."""
    counters = Counters()
    namespaces = Namespaces(Dedup(codec=RawCodec(), on_unavailable=LocalLRU()), counters=counters)
    counters.observe("fastdedup", "claim", "acquired", 0.1)
    counters.on_event(Degraded("fastdedup", "claim", True, "down"))
    counters.on_event(Shortfall("fastdedup", "claim", "k", 1))
    counters.on_event(DeadLettered("orders", "k", "failed", 5, "ValueError"))  # of a program's consumers
    counters.on_event(ConsumerPaused("orders", "down"))
    labels: dict[str, set[str]] = {}
    registry = CollectorRegistry()
    watch(Consumer(Redis(), Dedup(), stream="s", group="g", key=entry_id), registry=registry)
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
