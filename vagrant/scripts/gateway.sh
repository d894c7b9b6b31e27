#!/usr/bin/env bash
# Makes this machine, or network namespace, a NAT gateway from clients to brokers, whose firewall drops idle connections:
# brokers see the gateway's address, and a connection idle for longer than IDLE_S is dropped without notice to either,
# or reset when one of them sends again.
#
#   IDLE_S      seconds of silence after which a connection is dropped
#   CLIENTS     network of the clients, as 10.57.1.0/24
#   BROKERS     network of the brokers
#   FORGOTTEN   treatment of a segment on a dropped connection: drop (default), or reset: answered with RST
#
# It uses networks, not interfaces: the names of these differ between hypervisors. It may run again at any time.
set -euo pipefail
: "${IDLE_S:?}" "${CLIENTS:?}" "${BROKERS:?}"
case ${FORGOTTEN:=drop} in
    drop) answer=drop ;;
    reset) answer="reject with tcp reset" ;;
    *) echo "FORGOTTEN is drop or reset, not $FORGOTTEN" >&2; exit 2 ;;
esac

# The first two lines make the rest a replacement, all or nothing.
nft -f - <<RULES
table ip kafka-probe-lab
delete table ip kafka-probe-lab
table ip kafka-probe-lab {
    chain translate {
        type nat hook postrouting priority srcnat;
        ip saddr $CLIENTS ip daddr $BROKERS masquerade random
    }
    # Before routing: a broker's segment on a forgotten connection is for the gateway itself, which would answer RST.
    # Only these networks: a quiet ssh session to the gateway goes on.
    chain forgotten {
        type filter hook prerouting priority filter;
        ip saddr { $CLIENTS, $BROKERS } meta l4proto tcp ct state invalid counter $answer
    }
}
RULES

# Connection tracking has its settings only once a rule uses it. Not loose: a segment in mid-stream opens no new entry.
echo 0 >/proc/sys/net/netfilter/nf_conntrack_tcp_loose
echo "$IDLE_S" >/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established
echo 1 >/proc/sys/net/ipv4/ip_forward
