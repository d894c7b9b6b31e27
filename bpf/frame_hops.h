// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hops over frames by their lengths alone. One call can hop over far more frames than the cursor can follow step by step.
#pragma once
#include "big_endian.h"
#include "counters.h"
#include "cursor.h"
#include "in_flight.h"
#include "iov.h"
#include "maps.h"
#include "requests.h"
#include "sample.h"
#include "sock.h"
#include "verifier.h"

// Hop over one frame by its size and count it in `hopped`. It reads as much of the size as the current segment of the buffer
// contains. Return SUBMIT if the bytes are no frame or unreadable: then the cursor has to take a step instead.
static inline int hop(struct conn *conn, struct cursor *c, u8 direction)
{
	struct call *call = &c->call;
	u32 position = c->next - call->start, left = call->end - c->next;
	if ((s32)left <= 0)
		return DONE;
	if (!call->readable || (s32)position < 0)
		return SUBMIT;
	if (position - call->segment >= call->segment_bytes) {
		call->readable = next_segment(call);
		return MORE;
	}
	if (c->have < 4) {
		u64 at = c->have, want = 4 - at, there = call->segment_bytes - (position - call->segment);
		if (there > left)
			there = left;
		if (want > there)
			want = there;
		PINNED(at);
		PINNED(want);
		if (at > 3 || want > 4)
			return SUBMIT;
		if (bpf_probe_read_user(c->element + at, want, (void *)(call->buffer + position - call->segment))) {
			call->readable = 0;
			return SUBMIT;
		}
		c->next += want;
		c->have = at + want;
		c->need = head_bytes(conn, c, direction);
		if (c->have < 4)
			return MORE;
	}
	u32 size = be32(c->element), least = conn->sasl_raw ? 0 : is_request(conn, direction) ? REQUEST_HEAD - 4 : 4;
	if (size < least || size >= MAX_FRAME_BYTES)
		return SUBMIT;
	c->next += 4 - c->have + size;
	c->have = 0;
	c->out.kind = 0; // the next frame does not continue a request that was parsed
	c->hopped++;
	return MORE;
}

// Hop over frames of a call after its steps are used up. So the cursor finds the start of the frame behind them.
static inline int hop_on(u64 sk, u8 direction)
{
	u32 which = direction;
	struct conn *conn = conns.lookup(&sk);
	struct cursor *c = running.lookup(&which);
	if (!conn || !c)
		return DONE;
	c->hopped = 0;
	int outcome = MORE;
#pragma clang loop unroll(disable)
	for (int i = 0; i < HOPS && outcome == MORE; i++)
		outcome = hop(conn, c, direction);
	count(LOST_LIMIT, c->hopped);
	if (c->hopped && is_request(conn, direction))
		skip_requests(conn, c->hopped);
	else if (c->hopped)
		count_responses(conn, c->hopped);
	return outcome;
}

int hop_send(u64 sk)
{
	return hop_on(sk, SEND);
}

int hop_receive(u64 sk)
{
	return hop_on(sk, RECEIVE);
}

static int (*call_hop_send)(u64 sk) = (void *)CALL_HOP_SEND;
static int (*call_hop_receive)(u64 sk) = (void *)CALL_HOP_RECEIVE;
