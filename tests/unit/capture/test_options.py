"""The kernel's maps of rules and walks hold what may leave of every API."""

from __future__ import annotations

import struct

from kafka_probe.attaching import rules
from kafka_probe.capture.options import RULES, WALK_OPS, map_contents


def test_every_rule_finds_its_walks() -> None:
    maps: dict[str, dict[int, bytes]] = {"rules": {}, "walks": {}}
    for name, place, value in map_contents(rules()):
        assert place not in maps[name]
        maps[name][place] = value
    assert max(maps["rules"]) < RULES
    assert min(maps["walks"]) > 0
    assert max(maps["walks"]) < WALK_OPS
    for rule in rules():
        *said, request, response = struct.unpack("<IIIHH", maps["rules"][rule.api_key << 5 | rule.api_version])
        assert said == [rule.request_limit, rule.response_limit, rule.flags]
        for start, walk in ((request, rule.request_walk), (response, rule.response_walk)):
            assert bool(start) == bool(walk)
            ops = [maps["walks"][start + place] for place in range(len(walk))]
            assert struct.unpack(f"<{len(walk)}H", b"".join(ops)) == walk
