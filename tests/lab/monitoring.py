"""Reads the product's rules and dashboards, and the Prometheus queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "agent" / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression with its location. Grafana's variables are filled in: all agents, one end, all topics."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    filled = {"$__rate_interval": "5m", "$instance": ".*", "$side": "server", "$topic": ".*"}
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expression: str = target["expr"]
                for variable, value in filled.items():
                    expression = expression.replace(variable, value)
                yield f"{file.name}: {panel['title']}", expression


def metrics(expression: str) -> set[str]:
    """Return the agent's metrics in an expression."""
    return set(re.findall(r"\bkafka_probe_\w+", expression))


def labels(expression: str) -> Iterator[tuple[str, str]]:
    """Return metric and label of every condition on one of the agent's metrics."""
    for metric, conditions in re.findall(r"\b(kafka_probe_\w+)\{([^}]*)\}", expression):
        yield from ((metric, label) for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', conditions))


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in DASHBOARDS]
