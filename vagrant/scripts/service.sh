#!/usr/bin/env bash
# Runs a command as a service of systemd, anew if it runs already, and starts it again whenever it ends.
# The only script here that knows systemd: all others run in the foreground, on a machine or in a network namespace.
# Usage: service.sh NAME [VARIABLE=VALUE ...] COMMAND [ARGUMENT ...]
set -euo pipefail

systemctl stop "$1.service" 2>/dev/null || true
systemd-run --quiet --unit="$1" --collect --property=Restart=always --property=RestartSec=5 -- /usr/bin/env "${@:2}"
