// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How peers share what is left of the buffer to the agent, so that the records of one cannot crowd out those of the others.
#pragma once
#include "sock.h"

// A ring up to half full takes everything: the agent is woken at a quarter, so a peer at full speed stays below. Above that each peer has
// a token bucket whose tokens come from what the agent reads: a peer may write a quarter as much, whatever the agent's speed is, and an
// eighth of the ring besides. So one peer cannot hold the ring above half for long. Frames are refused where less than an eighth is
// free: that is for records of the beginnings and ends of connections, of which a peer may write another eighth of the ring.
// Perf buffers do not show how full they are: there the rate is fixed, and always in force.
#if PERF_BUFFER
#define PEER_RATE 20000 // records per second
#define PEER_COST (1000000000 / PEER_RATE)
#define PEER_BURST 1000000000
#else
#define RING_BYTES (RING_PAGES * 4096ull)
// BCC has no word for this helper (kernel 5.8), nor for the map itself: capture/link.py knows its number.
static u64 (*query_ring)(void *ring, u64 what) = (void *)RING_QUERY;
#define PEER_COST (4 * (sizeof(struct record) + 8))
#define PEER_BURST (4 * RING_BYTES / 8)
#endif

static inline struct peer peer_at(struct open_data *open)
{
	u32 *address = (u32 *)open->peer_address;
	struct peer peer = { .family = open->family };
	if (open->family == AF_INET) {
		peer.network = address[0];
	} else if (!address[0] && !address[1] && address[2] == bpf_htonl(0xffff)) { // an IPv4 address on an IPv6 socket
		peer.family = AF_INET;
		peer.network = address[3];
	} else {
		peer.network = (u64)address[0] << 32 | address[1];
	}
	return peer;
}

// Takes tokens of a peer; 0 if it has none.
static inline int take_tokens(struct peer *peer, u64 clock, u64 burst)
{
	struct usage none = { .clock = clock };
	struct usage *usage = peers.lookup(peer);
	if (!usage) {
		peers.update(peer, &none);
		usage = peers.lookup(peer);
	}
	if (!usage)
		return 1;
	s64 since = clock - usage->clock; // below 0: another CPU was ahead
	if (since > 0) {
		usage->debt = usage->debt > since ? usage->debt - since : 0;
		usage->clock = clock;
	}
	if (usage->debt >= burst)
		return 0;
	usage->debt += PEER_COST;
	return 1;
}

// Why the record must not leave, as a counter; 0 if it may.
static inline u32 refused(struct peer *peer, int frame)
{
#if PERF_BUFFER
	u64 clock = bpf_ktime_get_ns();
#else
	u64 waiting = query_ring(RING, BPF_RB_AVAIL_DATA);
	if (waiting <= RING_BYTES / 2)
		return 0;
	if (frame && waiting > RING_BYTES / 8 * 7)
		return LOST_RING_FULL;
	u64 clock = query_ring(RING, BPF_RB_CONS_POS);
#endif
	return take_tokens(peer, clock, frame ? PEER_BURST : 2ull * PEER_BURST) ? 0 : LOST_PEER_LIMITED;
}

// Whether there was room for the record.
static inline int send_record(void *ctx, struct peer *peer, struct record *record)
{
	u32 lost = refused(peer, record->kind == RECORD_FRAME);
	if (!lost && emit(ctx, record))
		lost = LOST_RING_FULL;
	if (lost)
		count(lost, 1);
	return !lost;
}
