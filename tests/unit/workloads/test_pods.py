"""The facts of a pod's object, in the API's form, and how long they are kept."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from kafka_probe.workloads.pods import GONE_MAX, GONE_S, LABELS_MAX, LABELS_MAX_BYTES, NAMELESS, Pod, Pods, described

MINUTE = 29_733_120  # since epoch: 2026-07-14 00:00
MADE = "2026-07-14T00:00:01Z"


def pod(labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    metadata = {"name": "orders-0", "namespace": "shop", "uid": "u1", "creationTimestamp": MADE, "labels": labels}
    return {"metadata": metadata, "status": status}


def owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    """Return a pod that a controller made, and that another object owns, too."""
    made = pod({key.replace("_", "-"): value for key, value in labels.items()})
    owners = [{"kind": "Cleaner", "name": "c"}, {"kind": kind, "name": name, "controller": True}]
    made["metadata"]["ownerReferences"] = owners
    return made


def known(uid: str, *ids: str, name: str = "orders-0") -> Pod:
    return Pod(uid, frozenset((uid, *ids)), {**NAMELESS, "pod": name})


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def pods(now: list[float]) -> Pods:
    return Pods(clock=lambda: now[0])


def name(pods: Pods, *ids: str | None) -> object:
    names = pods.names(*ids)
    return names["pod"] if names else None


def test_a_pod_has_a_name_a_namespace_and_labels() -> None:
    names = described(pod({"app": "orders"})).names
    assert names == {**NAMELESS, "pod": "orders-0", "namespace": "shop", "labels": {"app": "orders"}}


def test_a_pod_is_found_by_its_uid_and_by_every_kind_of_container_and_its_predecessor() -> None:
    ids = [secrets.token_hex(32) for _ in range(4)]
    main, before, init, debug = (f"containerd://{each}" for each in ids)
    whole = described(
        pod(
            containerStatuses=[{"containerID": main, "lastState": {"terminated": {"containerID": before}}}],
            initContainerStatuses=[{"containerID": init, "lastState": {}}],
            ephemeralContainerStatuses=[{"containerID": debug}],
        )
    )
    assert whole.ids == {"u1", *ids}


def test_a_container_that_waits_to_be_made_has_no_id_yet() -> None:
    assert described(pod(containerStatuses=[{"containerID": "", "state": {"waiting": {}}}, {}])).ids == {"u1"}


@pytest.mark.parametrize(
    ("made", "owner"),
    [
        (pod(), (None, None)),
        (owned("StatefulSet", "orders"), ("StatefulSet", "orders")),
        (owned("DaemonSet", "kafka-probe"), ("DaemonSet", "kafka-probe")),
        (owned("Node", "node-1"), ("Node", "node-1")),
        (owned("ReplicaSet", "orders-7c9f", pod_template_hash="7c9f"), ("Deployment", "orders")),
        (owned("ReplicaSet", "orders-7c9f", pod_template_hash="88d1"), ("ReplicaSet", "orders-7c9f")),
        (owned("ReplicaSet", "by-hand"), ("ReplicaSet", "by-hand")),
        (owned("Job", f"report-{MINUTE}"), ("CronJob", "report")),
        (owned("Job", f"report-{MINUTE - 24 * 60}"), ("CronJob", "report")),
        (owned("Job", f"report-{MINUTE + 24 * 60}"), ("Job", f"report-{MINUTE + 24 * 60}")),
        (owned("Job", "report-20260714"), ("Job", "report-20260714")),
        (owned("Job", "migrate"), ("Job", "migrate")),
    ],
)
def test_what_runs_a_pod_is_found_by_its_controller_and_names(
    made: dict[str, Any], owner: tuple[str | None, str | None]
) -> None:
    names = described(made).names
    assert (names["owner_kind"], names["owner_name"]) == owner


def test_labels_are_bounded_in_number_and_size() -> None:
    many = {f"l{number:02}": "x" for number in range(LABELS_MAX + 5)}
    assert described(pod(many)).names["labels"] == dict(list(many.items())[:LABELS_MAX])
    long = {f"l{number}": "x" * (LABELS_MAX_BYTES // 2 - 2) for number in range(3)}
    assert described(pod(long)).names["labels"] == dict(list(long.items())[:2])


def test_what_is_not_known_has_no_names(pods: Pods) -> None:
    pods.put(known("u1", "c1"))
    assert pods.names("c2", None) is None
    assert pods.names() is None


def test_the_container_tells_more_than_the_pod(pods: Pods) -> None:
    pods.put(known("u1", "c1", name="by-container"))
    pods.put(known("u2", name="by-uid"))
    assert name(pods, "c1", "u2") == "by-container"
    assert name(pods, "c9", "u2") == "by-uid"


def test_a_pod_is_remembered_for_a_while_after_its_end(pods: Pods, now: list[float]) -> None:
    pods.put(known("u1", "c1"))
    pods.put(known("u2", "c2"))
    pods.remove("u1")
    now[0] += GONE_S - 1
    pods.forget()
    assert name(pods, "c1") == "orders-0"
    now[0] += 1
    pods.forget()
    assert pods.names("c1", "u1") is None
    assert name(pods, "c2") == "orders-0"


def test_a_pod_that_a_new_list_does_not_have_is_gone_and_one_that_it_has_is_not(pods: Pods, now: list[float]) -> None:
    for uid in ("u1", "u2", "u3"):
        pods.put(known(uid))
    pods.remove("u3")
    pods.replace([known("u2"), known("u3"), known("u4")])
    now[0] += GONE_S
    pods.forget()
    assert [name(pods, uid) is not None for uid in ("u1", "u2", "u3", "u4")] == [False, True, True, True]


def test_of_pods_that_are_gone_the_oldest_are_dropped(pods: Pods) -> None:
    for number in range(GONE_MAX + 2):
        pods.put(known(f"u{number}", f"c{number}"))
        pods.remove(f"u{number}")
        pods.forget()
    assert [name(pods, f"c{number}") is not None for number in (0, 1, 2, GONE_MAX + 1)] == [False, False, True, True]


def test_containers_that_a_pod_no_longer_has_are_forgotten(pods: Pods) -> None:
    pods.put(known("u1", "c1"))
    pods.put(known("u1", "c2"))
    assert (name(pods, "c1"), name(pods, "c2")) == (None, "orders-0")


def test_containers_around_which_another_pod_was_made_are_that_ones(pods: Pods, now: list[float]) -> None:
    pods.put(known("u1", "c1", name="mirror"))
    pods.put(known("u2", "c1", name="mirror made anew"))
    pods.remove("u1")
    now[0] += GONE_S
    pods.forget()
    assert name(pods, "c1") == "mirror made anew"


def test_a_pod_that_nobody_knew_may_end(pods: Pods) -> None:
    pods.remove("u1")
    pods.forget()
    assert pods.names("u1") is None
