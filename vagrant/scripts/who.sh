#!/usr/bin/env bash
# Who is behind the NAT, by the events of all agents in the topic kafka-probe.events. Usage: who.sh BOOTSTRAP
set -euo pipefail

kcat -C -e -q -b "$1" -t kafka-probe.events | python3 "$(dirname "$0")/who.py"
