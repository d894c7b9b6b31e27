"""Rules and dashboards: Prometheus accepts them, they fire when they should, and the metrics in them exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from kafka_probe.server.metrics import METRICS, PREFIX
from kafka_probe_pipeline import progress
from tests.lab.monitoring import DASHBOARDS, RULES, dashboards, expressions, labels, metrics

HERE = Path(__file__).parent
LOSSES = HERE.parents[2] / "docs/reference/losses.md"
SUFFIXES = ("_bucket", "_count", "_sum")
# Losses about which no rule fires: they are expected now and then, or KafkaProbeSheds reports them.
UNASKED = {
    *(
        "resync",
        "urgent_data",
        "header_incomplete",
        "refusal_unmatched",
        "response_unmatched",
        "request_unanswered",
        "before_proof",
        "frame_truncated",
    ),
    *("nat_not_asked", "topics_shed", "request_shed", "activity_limit"),
}
# What the scrape adds.
OF_THE_SCRAPE = {"instance", "node", "job"}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def exposed() -> dict[str, set[str]]:
    """Return labels by the names of all samples that there can be."""
    found = {}
    for metric in METRICS:
        name = PREFIX + metric.name
        of_histogram = {name + suffix: {*metric.labels, "le"} for suffix in SUFFIXES}
        found.update(of_histogram if metric.kind == "histogram" else {name: set(metric.labels)})
    return found | {progress.PREFIX + name: {*progress.labels(name)} for name in progress.METRICS}


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stderr


def test_every_rule_fires_in_trouble_and_none_without() -> None:
    tested = promtool("test", "rules", HERE / "rules_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    text = (HERE / "rules_test.yml").read_text()
    alerts = [line.split()[-1] for line in RULES.read_text().splitlines() if "- alert:" in line]
    assert [alert for alert in alerts if f'alertname="{alert}"' not in text] == []


def test_every_loss_has_a_rule_or_is_expected() -> None:
    losses = set(re.findall(r"^\| `(\w+)` \|", LOSSES.read_text(), re.MULTILINE))
    patterns = re.findall(r'reason=~?"([^"]+)"', RULES.read_text())
    asked = {loss for loss in losses if any(re.fullmatch(pattern, loss) for pattern in patterns)}
    assert (losses - asked, UNASKED - losses) == (UNASKED, set())


def test_every_question_of_a_dashboard_is_valid(tmp_path: Path) -> None:
    """The expressions are checked as rules, because promtool checks these."""
    rules = [{"record": f"question:{n}", "expr": expression} for n, (_, expression) in enumerate(expressions())]
    file = tmp_path / "questions.yml"
    file.write_text(json.dumps({"groups": [{"name": "questions", "rules": rules}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=[where for where, _ in expressions()])
def test_every_metric_and_label_that_is_asked_for_exists(where: str, expression: str) -> None:
    known = exposed()
    assert metrics(expression) or where == "KafkaProbeDown"
    assert metrics(expression) <= known.keys()
    assert [(metric, label) for metric, label in labels(expression) if label not in known[metric] | OF_THE_SCRAPE] == []


def test_what_a_variable_offers_exists() -> None:
    known = exposed()
    variables = [variable for dashboard in dashboards() for variable in dashboard["templating"]["list"]]
    asked = [variable for variable in variables if variable["type"] == "query"]
    assert {variable["name"] for variable in asked} == {"instance", "topic"}
    for variable in asked:
        question = variable["query"]["query"]
        assert question == variable["definition"]
        found = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", question)
        assert found, question
        wanted = {found.groups(), *labels(question)}
        assert [(metric, label) for metric, label in wanted if label not in known[metric] | OF_THE_SCRAPE] == []


def test_a_dashboard_can_be_imported_beside_the_others() -> None:
    assert len(DASHBOARDS) == 4
    found = dashboards()
    assert len({dashboard["uid"] for dashboard in found}) == len({dashboard["title"] for dashboard in found}) == 4
    for dashboard in found:
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
        sources = [panel["datasource"]["uid"] for panel in panels]
        sources += [target["datasource"]["uid"] for panel in panels for target in panel["targets"]]
        assert set(sources) == {"${datasource}"}
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = {name for name in ("instance", "side", "topic") if f"${name}" in json.dumps(panels)}
        assert used <= variables
