"""Connects a guest to the outside: by a tap device in a network namespace, whose place the guest takes."""

from __future__ import annotations

import json

from tests.lab.network import Namespace

TAP = "tap0"
_SCRIPT = """
ip address add {address}/24 dev eth0
ip link set eth0 up
ip route add default via {gateway}
"""


def give_to_guest(client: Namespace) -> str:
    """Give the namespace's address and cable to a guest on TAP; return the commands for the guest's script."""
    (route,) = (route for route in json.loads(client.run("ip", "-json", "route")) if "gateway" in route)
    client.run("ip", "address", "flush", "dev", "eth0")
    client.run("ip", "tuntap", "add", TAP, "mode", "tap")
    client.run("ip", "link", "add", "bridge", "type", "bridge")
    for device in ("eth0", TAP):
        client.run("ip", "link", "set", device, "master", "bridge", "up")
    client.run("ip", "link", "set", "bridge", "up")
    return _SCRIPT.format(address=client.address, gateway=route["gateway"])
