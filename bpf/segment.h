// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads the addresses and flags of a received TCP segment.
#pragma once
#include "kernel_structs.h"
#include "sample.h"
#include "sock.h"

#define TCP_SYN 2

// The headers on the wire, up to the last field that is read.
struct tcp_header {
	u16 source;
	u16 destination;
	u8 numbers[9];
	u8 flags;
};

struct ipv4_header {
	u8 version; // in the upper four bits
	u8 other[11];
	u8 source[4];
	u8 destination[4];
};

struct ipv6_header {
	u8 other[8];
	u8 source[16];
	u8 destination[16];
};

// Fill in the addresses from the point of view of the receiving host, and return the TCP flags.
static inline u8 segment(u64 skb, struct open_data *to)
{
	u64 head = READ(skb, sk_buff, head);
	u64 ip = head + READ(skb, sk_buff, network_header);
	u64 tcp = head + READ(skb, sk_buff, transport_header);
	to->peer_port = bpf_ntohs(READ_FIELD(tcp, tcp_header, source));
	to->local_port = bpf_ntohs(READ_FIELD(tcp, tcp_header, destination));
	if (READ_FIELD(ip, ipv4_header, version) >> 4 == 4) {
		to->family = AF_INET;
		bpf_probe_read_kernel(to->peer_address, 4, (void *)FIELD(ip, ipv4_header, source));
		bpf_probe_read_kernel(to->local_address, 4, (void *)FIELD(ip, ipv4_header, destination));
	} else {
		to->family = AF_INET6;
		bpf_probe_read_kernel(to->peer_address, 16, (void *)FIELD(ip, ipv6_header, source));
		bpf_probe_read_kernel(to->local_address, 16, (void *)FIELD(ip, ipv6_header, destination));
	}
	to->netns = netns_of(READ(READ(skb, sk_buff, dev), net_device, nd_net));
	return READ_FIELD(tcp, tcp_header, flags);
}
