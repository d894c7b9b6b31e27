// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How peers share what is left of the buffer to the agent, so that the samples of one cannot crowd out those of the others.
//
// A ring up to half full takes everything: the agent is woken at a quarter, so a peer at full speed stays below. Above that each peer
// has a token bucket whose tokens come from what the agent reads: a peer may write a quarter as much, whatever the agent's speed is, and
// a sixteenth of the ring besides. So one peer cannot hold the ring above half for long. Frames are refused where less than an eighth is
// free: that is for samples of the beginnings and ends of connections, of which a peer may write another sixteenth of the ring.
// Perf buffers do not show how full they are: there the rate is fixed, and always in force.
#pragma once
#include "sock.h"

#if PERF_BUFFER
#define PEER_RATE 20000 // samples per second
#define PEER_COST (1000000000 / PEER_RATE)
#define PEER_BURST 1000000000ull
#else
#define RING_BYTES (RING_PAGES * 4096ull)
// BCC has no word for this helper (kernel 5.8), nor for the map itself: capture/link.py knows its number.
static u64 (*query_ring)(void *ring, u64 what) = (void *)RING_QUERY;
#define PEER_COST (4 * (sizeof(struct sample) + 8))
#define PEER_BURST (4 * RING_BYTES / 16)
#endif

// A peer is one number: the clients of an IPv6 /64 at a server end, by that network. The networks of 0000::/8 are reserved
// (RFC 4291, 4), so they stand for others: the lowest for IPv4 addresses, the next for the processes of client ends.
static inline u64 peer_process(u32 tgid)
{
	return 1ull << 32 | tgid;
}

static inline u64 peer_at(struct open_data *open)
{
	u32 *address = (u32 *)open->peer_address;
	if (open->family == AF_INET)
		return address[0];
	if (!address[0] && !address[1] && address[2] == bpf_htonl(0xffff)) // an IPv4 address on an IPv6 socket
		return address[3];
	return (u64)bpf_ntohl(address[0]) << 32 | address[1];
}

// Takes tokens of a peer; 0 if it has none.
static inline int take_tokens(u64 peer, u64 clock, u64 burst)
{
	struct usage none = { .clock = clock };
	struct usage *usage = peers.lookup(&peer);
	if (!usage) {
		peers.update(&peer, &none);
		usage = peers.lookup(&peer);
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

// Whether a sample of the peer may be written; if not, the loss is counted.
static inline int share(u64 peer, int frame)
{
#if PERF_BUFFER
	u64 clock = bpf_ktime_get_ns();
#else
	u64 waiting = query_ring(RING, BPF_RB_AVAIL_DATA);
	if (waiting <= RING_BYTES / 2)
		return 1;
	if (frame && waiting > RING_BYTES / 8 * 7) {
		count(LOST_RING_FULL, 1);
		return 0;
	}
	u64 clock = query_ring(RING, BPF_RB_CONS_POS);
#endif
	if (take_tokens(peer, clock, frame ? PEER_BURST : 2 * PEER_BURST))
		return 1;
	count(LOST_PEER_LIMITED, 1);
	return 0;
}

// Global functions, as in frames.h: inlined at each sample they would be most of what the verifier walks.
int share_frame(u64 peer)
{
	return share(peer, 1);
}

int share_notice(u64 peer)
{
	return share(peer, 0);
}

static int (*call_share_frame)(u64 peer) = (void *)CALL_SHARE_FRAME;
static int (*call_share_notice)(u64 peer) = (void *)CALL_SHARE_NOTICE;

// Whether there was room for the sample.
static inline int try_emit(void *ctx, struct sample *sample)
{
	int full = emit(ctx, sample) != 0;
	if (full)
		count(LOST_RING_FULL, 1);
	return !full;
}

static inline int send_frame(void *ctx, struct conn *conn, struct sample *sample)
{
	return call_share_frame(conn->peer) && try_emit(ctx, sample);
}

// Of the beginning, the end or the owner of a connection, or of a socket.
static inline int send_notice(void *ctx, u64 peer, struct sample *sample)
{
	return call_share_notice(peer) && try_emit(ctx, sample);
}
