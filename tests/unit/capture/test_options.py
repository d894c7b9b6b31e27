"""The kernel's maps of rules and copy programs contain what may leave the kernel, for every API."""

from __future__ import annotations

import struct

from kafka_probe.capture.options import PROGRAM_OPS, RULES, map_contents
from kafka_probe.startup import rules


def test_every_rule_finds_its_walks() -> None:
    maps: dict[str, dict[int, bytes]] = {"rules": {}, "copy_programs": {}}
    for name, place, value in map_contents(rules()):
        assert place not in maps[name]
        maps[name][place] = value
    assert max(maps["rules"]) < RULES
    assert min(maps["copy_programs"]) > 0
    assert max(maps["copy_programs"]) < PROGRAM_OPS
    for rule in rules():
        *fields, request, response = struct.unpack("<IIIHH", maps["rules"][rule.api_key << 5 | rule.api_version])
        assert fields == [rule.request_limit, rule.response_limit, rule.flags]
        for start, program in ((request, rule.request_program), (response, rule.response_program)):
            assert bool(start) == bool(program)
            ops = [maps["copy_programs"][start + place] for place in range(len(program))]
            assert struct.unpack(f"<{len(program)}H", b"".join(ops)) == program
