// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads the addresses and flags of a received TCP segment.
#pragma once
#include "kernel_structs.h"
#include "sample.h"
#include "sock.h"

#define TCP_SYN 2

// Fill in the addresses from the point of view of the receiving host, and return the TCP flags.
static inline u8 segment(u64 skb, struct open_data *to)
{
	u64 head = READ(skb, sk_buff, head);
	u64 ip = head + READ(skb, sk_buff, network_header);
	u64 tcp = head + READ(skb, sk_buff, transport_header);
	to->peer_port = bpf_ntohs(READ_AT(u16, tcp));
	to->local_port = bpf_ntohs(READ_AT(u16, tcp + 2));
	if (READ_AT(u8, ip) >> 4 == 4) {
		to->family = AF_INET;
		bpf_probe_read_kernel(to->peer_address, 4, (void *)(ip + 12));
		bpf_probe_read_kernel(to->local_address, 4, (void *)(ip + 16));
	} else {
		to->family = AF_INET6;
		bpf_probe_read_kernel(to->peer_address, 16, (void *)(ip + 8));
		bpf_probe_read_kernel(to->local_address, 16, (void *)(ip + 24));
	}
	to->netns = netns_of(READ(READ(skb, sk_buff, dev), net_device, nd_net));
	return READ_AT(u8, tcp + 13);
}
