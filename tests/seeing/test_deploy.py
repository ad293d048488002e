"""Alerts and dashboard: promtool accepts them, and they name what a running server tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import opferry
from opferry import errors
from tests.aclnn.simulated import simulated
from tests.docs.reading import table_rows
from tests.support.admin import Admin
from tests.support.calls import tnd
from tests.support.servers import ROOT
from tests.support.suites import OPERATOR, TND

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
ALERT_TESTS = ROOT / "deploy" / "prometheus" / "alerts.test.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "opferry.json"

OF_PROMETHEUS = {"up": {"job", "instance"}}
"""What Prometheus adds of its own, with its labels."""
TARGET_LABELS = {"job", "instance"}

NAME = re.compile(r"\b(?:opferry|process)_[a-z_]+\b|\bup\b(?=\{)")
SELECTOR = re.compile(r"((?:opferry|process)_[a-z_]+|\bup)\{([^}]*)\}")
BY = re.compile(r"\b(?:by|on) \(([a-z_, ]+)\)")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for rule in alerts():
        yield rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric that a server tells which has had something of everything."""
    admin = Admin()
    folder = tmp_path_factory.mktemp("simulator")
    inputs = {name: value for name, value in tnd().items() if name != "layout"}
    faulty = tnd()
    faulty["grad_query_embed"].flat[0] = 512
    found: dict[str, set[str]] = defaultdict(set)
    SAMPLED.clear()
    with simulated(
        folder,
        options=admin.options,
        faults="aclnnApplyRotaryPosEmbGrad:content=512:507015",
    ) as farm:
        with pytest.raises(errors.DeviceFaultError):
            farm.client.apply_rotary_pos_emb_grad(**faulty)
        farm.client.apply_rotary_pos_emb_grad(**tnd())
        list(farm.client.execute_many(OPERATOR, [inputs], attributes=TND))
        farm.client.validate(OPERATOR, inputs, attributes=TND)
        for family in text_string_to_metric_families(admin.get("/metrics").text):
            # what has no sample just now: nothing is inside, nobody leases
            if family.name in WITHOUT_SAMPLES:
                found[family.name] |= WITHOUT_SAMPLES[family.name]
                SAMPLED.add(family.name)
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
                SAMPLED.add(sample.name)
    return dict(found)


SAMPLED: set[str] = set()
"""The names that Prometheus knows: of samples, not of families."""

WITHOUT_SAMPLES = {
    "opferry_queue_requests": {"state", "tenant"},
    "opferry_device_leases": {"state", "tenant"},
}
"""Metrics that have no sample when nothing is going on, with their labels."""


def test_only_metrics_of_a_running_server_are_named(told: dict[str, set[str]]) -> None:
    """And only labels that they have."""
    known = {**told, **OF_PROMETHEUS}
    for expression in expressions():
        names = set(NAME.findall(expression))
        assert names, expression
        assert names <= set(known), (names - set(known), expression)
        for name, selectors in SELECTOR.findall(expression):
            labels = set(re.findall(r"([a-z_]+)(?:=~|!~|!=|=)", selectors))
            assert labels <= known[name] | TARGET_LABELS, (name, labels, expression)
        kept = set().union(*(known[name] for name in names), TARGET_LABELS)
        for group in BY.findall(expression):
            assert set(group.split(", ")) <= kept, expression


def test_legends_and_summaries_name_labels_that_are_left() -> None:
    """A legend of a label that an aggregation has dropped is empty."""
    texts = [
        (target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]
    texts += [(rule["expr"], rule["annotations"]["summary"]) for rule in alerts()]
    for expression, text in texts:
        named = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}", text))
        groups = BY.findall(expression)
        if groups and re.match(r"(?:sum|max|histogram_quantile)\b", expression):
            assert named <= set(groups[0].split(", ")), (expression, text)


def test_the_dashboard_is_whole() -> None:
    """Ids are unique, panels do not overlap, and each has a title, a unit and a query."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_each_metric_is_on_the_dashboard_or_in_an_alert(told: dict[str, set[str]]) -> None:
    """But for what describes the server."""
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    named |= {re.sub("_bucket$", suffix, name) for name in named for suffix in ("_count", "_sum")}
    own = {name for name in told if name.startswith("opferry_") and not name.endswith("_info")}
    families = {re.sub("_total$", "", name) for name in own}
    assert families - {re.sub("_total$", "", name) for name in named} <= {
        "opferry_request_seconds",
        "opferry_queue_seconds",
    }


def test_the_documents_have_every_metric_and_every_alert(told: dict[str, set[str]]) -> None:
    """With the labels that they have; what to do at each alert."""
    rows = list(table_rows(ROOT / "docs" / "operations.md"))
    documented = {row[0].strip("`") for row in rows if row[0].startswith("`Opferry")}
    assert documented == {rule["alert"] for rule in alerts()}
    labels = {
        row[0].strip("`"): set(re.findall(r"`([a-z_]+)`", row[2]))
        for row in rows
        if row[0].startswith("`opferry_")
    }
    parts = re.compile(r"_(bucket|count|sum)$")
    assert labels == {
        parts.sub("", name): found - {"le"}
        for name, found in told.items()
        if name.startswith("opferry_") and (parts.search(name) or name in SAMPLED)
    }


def promtool(*words: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run([program, *words], capture_output=True, text=True, cwd=ALERTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules() -> None:
    """They are rules, and alert when they should."""
    assert f"{len(alerts())} rules found" in promtool("check", "rules", ALERTS.name)
    assert "SUCCESS" in promtool("test", "rules", ALERT_TESTS.name)


def test_promtool_takes_the_dashboards_queries(tmp_path: Path) -> None:
    """As rules, with Grafana's variables filled in."""
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", expression)}
        for number, expression in enumerate(
            target["expr"] for panel in panels() for target in panel["targets"]
        )
    ]
    path = tmp_path / "dashboard.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


def test_promtool_takes_what_a_server_tells(admin_text: str) -> None:
    """By its own rules for names and help texts."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run(
        [program, "check", "metrics"], input=admin_text, text=True, capture_output=True
    )
    complaints = [
        line for line in done.stderr.splitlines() + done.stdout.splitlines() if "opferry" in line
    ]
    assert complaints == []


@pytest.fixture
def admin_text() -> Iterator[str]:
    from tests.support import servers

    admin = Admin()
    with (
        servers.embedded(options=admin.options) as server,
        opferry.connect(server.address) as client,
    ):
        client.apply_rotary_pos_emb_grad(**tnd())
        yield admin.get("/metrics").text
