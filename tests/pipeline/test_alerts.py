"""The length of the names in an alert."""

from __future__ import annotations

import json
import re

from pyspark.sql import Row

from kafka_probe.text import NAME_LIMIT
from kafka_probe_pipeline.alerts import EVIDENCE_LIMIT, IDLE_TEXTS, alert
from kafka_probe_pipeline.incidents import CRASHES, HIT_MOST, IDLE_CAUSES
from kafka_probe_pipeline.scopes import NAME_CHARACTERS
from kafka_probe_pipeline.storms import SCHEMA


def test_every_cause_of_idle_connections_has_a_text() -> None:
    assert IDLE_TEXTS.keys() == {*IDLE_CAUSES}


def test_an_alert_has_names_as_short_texts_and_its_json_has_them_as_the_storm_does() -> None:
    name, evidence = "x" * NAME_CHARACTERS, "y" * 2 * EVIDENCE_LIMIT
    facts = {"id": "a", "kind": CRASHES, "subject": name, "opened_us": 0, "count": 20, "scope": f"workload {name}"}
    hits = {column: [Row(count=20, name=name)] for column in HIT_MOST}
    storm = dict.fromkeys(SCHEMA.names) | facts | hits | {"evidence": evidence}
    sent = alert(Row(**storm))

    annotations = sent.annotations()
    texts = [sent.summary, *sent.labels().values(), *annotations.values()]
    assert max(len(shown) for text in texts for shown in re.findall("x+…?", text)) == NAME_LIMIT
    assert annotations["evidence"] == evidence[: EVIDENCE_LIMIT - 1] + "…"

    fields = json.loads(sent.message())
    assert (fields["subject"], fields["scope"], fields["evidence"]) == (name, f"workload {name}", evidence)
    assert [fields[column] for column in HIT_MOST] == [[{"count": 20, "name": name}]] * len(HIT_MOST)
