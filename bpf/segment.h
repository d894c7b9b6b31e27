// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads the addresses and flags of a received TCP segment.
#pragma once
#include "sock.h"

#define TCP_SYN 2

// Fill in the addresses from the point of view of the receiving host, and return the TCP flags.
static inline u8 segment(u64 skb, struct open_data *to)
{
	u64 head = READ(u64, skb, OFFSET_SK_BUFF_HEAD);
	u64 ip = head + READ(u16, skb, OFFSET_SK_BUFF_NETWORK_HEADER);
	u64 tcp = head + READ(u16, skb, OFFSET_SK_BUFF_TRANSPORT_HEADER);
	to->peer_port = bpf_ntohs(READ(u16, tcp, 0));
	to->local_port = bpf_ntohs(READ(u16, tcp, 2));
	if (READ(u8, ip, 0) >> 4 == 4) {
		to->family = AF_INET;
		bpf_probe_read_kernel(to->peer_address, 4, (void *)(ip + 12));
		bpf_probe_read_kernel(to->local_address, 4, (void *)(ip + 16));
	} else {
		to->family = AF_INET6;
		bpf_probe_read_kernel(to->peer_address, 16, (void *)(ip + 8));
		bpf_probe_read_kernel(to->local_address, 16, (void *)(ip + 24));
	}
	to->netns = netns_of(READ(u64, READ(u64, skb, OFFSET_SK_BUFF_DEV), OFFSET_NET_DEVICE_ND_NET));
	return READ(u8, tcp, 13);
}
