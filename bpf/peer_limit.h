// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Shares the free part of the buffer between peers, so that the samples of one peer cannot displace those of others.
//
// A ring that is at most half full accepts every sample: the agent is woken at a quarter, so the ring stays below half even with
// a peer at full speed. Above half, each peer has a token bucket. Its tokens come from the bytes that the agent reads: a peer may
// write a quarter of them, at any speed of the agent, plus a sixteenth of the ring. So one peer cannot keep the ring above half
// for long. Frames are refused if less than an eighth is free. That eighth is reserved for samples of the beginning and end of
// connections, of which a peer may write another sixteenth of the ring. Perf buffers do not show how full they are. There the
// rate is fixed and always applies.
#pragma once
#include "counters.h"
#include "emit.h"
#include "maps.h"
#include "sample.h"
#include "sock.h"

#if PERF_BUFFER
#define PEER_RATE 20000 // samples per second
#define PEER_COST (1000000000 / PEER_RATE)
#define PEER_BURST 1000000000ull
#else
#define RING_BYTES (RING_PAGES * 4096ull)
// BCC has no name for this helper (kernel 5.8), nor for the map itself: capture/link.py contains its number.
static u64 (*query_ring)(void *ring, u64 what) = (void *)RING_QUERY;
#define PEER_COST (4 * (sizeof(struct sample) + 8))
#define PEER_BURST (4 * RING_BYTES / 16)
#endif

// A peer is a 64-bit number. At a server end it is the IPv6 /64 network of the clients. The networks of 0000::/8 are reserved
// (RFC 4291, 4), so they represent other peers: the lowest are IPv4 addresses, the next are the processes of client ends.
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

// Take the tokens for one sample from a peer. Return 0 if it has none.
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
	s64 since = clock - usage->clock; // negative: another CPU has set a later clock
	if (since > 0) {
		usage->debt = usage->debt > since ? usage->debt - since : 0;
		usage->clock = clock;
	}
	if (usage->debt >= burst)
		return 0;
	usage->debt += PEER_COST;
	return 1;
}

// Return 1 if a sample of the peer may be written, else count the loss.
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

// Global functions, as in frames.h: inlined at each sample, they would be most of the code that the verifier walks.
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

static inline int send_frame(void *ctx, struct conn *conn, struct sample *sample)
{
	return call_share_frame(conn->peer) && try_emit(ctx, sample);
}

// Send a sample about the beginning, the end or the owner of a connection, or about a socket.
static inline int send_notice(void *ctx, u64 peer, struct sample *sample)
{
	return call_share_notice(peer) && try_emit(ctx, sample);
}
