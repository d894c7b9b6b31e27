// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Runs the frame cursor. It finds the start of each Kafka frame in TCP sequence numbers and copies the allowed parts of the frame.
//
// A call moved the bytes [start, end). The cursor expects the byte at `next`. If that is behind the range, the whole range
// belongs to a body and is skipped in O(1). If it is inside, the cursor collects one small element after the other. So body bytes
// that no hook saw (sendfile, splice) cost nothing, an element may be split over any number of calls, and one call may contain a
// thousand frames.
#pragma once
#include "connection.h"
#include "copy_program.h"
#include "counters.h"
#include "cursor.h"
#include "frame_hops.h"
#include "iov.h"
#include "lifecycle.h"
#include "maps.h"
#include "requests.h"
#include "sample.h"
#include "peer_limit.h"
#include "sock.h"
#include "verifier.h"

static inline void element_complete(struct conn *conn, struct cursor *c, u8 direction)
{
	if (c->state == HEAD) {
		if (c->lock == SEEKING && !conn->is_kafka && one_tls_record(c))
			reject(conn, c);
		else
			is_request(conn, direction) ? request_head(conn, c) : response_head(conn, c);
		return;
	}
	if (c->state == BATCH) {
		batch(c);
		return;
	}
	if (c->copy_left < c->need) {
		lost(c, LOST_LIMIT);
		finish(c, FLAG_CUT);
		return;
	}
	c->copy_left -= c->need;
	if (c->state != EMPTIED && c->state != TAG_SKIPPED)
		append(c, c->element, c->need, MAX_ELEMENT);
	if (c->state & NUMBER)
		number_complete(conn, c);
	else
		fields_complete(conn, c);
}

// Read ahead from the cursor on, as much as the current segment of the caller's buffer contains. Return 0 if the read fails. One
// read of user memory costs more than a whole step.
static inline int read_ahead(struct cursor *c, struct lookahead *bytes_ahead)
{
	struct call *call = &c->call;
	u32 position = c->next - call->start, left = call->end - c->next;
	u64 bytes = call->segment_bytes - (position - call->segment);
	if (bytes > left)
		bytes = left;
	if (bytes > LOOKAHEAD)
		bytes = LOOKAHEAD;
	PINNED(bytes);
	if (bytes > LOOKAHEAD ||
	    bpf_probe_read_user(bytes_ahead->bytes, bytes, (void *)(call->buffer + position - call->segment)))
		return 0;
	c->lookahead_start = c->next;
	c->lookahead_bytes = bytes;
	return 1;
}

// Collect the bytes that the cursor expects, as many of them as were read ahead.
static inline void collect(struct conn *conn, struct cursor *c, struct lookahead *bytes_ahead, u8 direction)
{
	struct call *call = &c->call;
	u32 position = c->next - call->start;
	if (!call->readable || (s32)position < 0) {
		unreadable(c);
		return;
	}
	if (position - call->segment >= call->segment_bytes) {
		call->readable = next_segment(call);
		return;
	}
	u64 want = c->state == BULK ? c->bulk : c->need - c->have;
	if (c->state != HEAD && want > c->frame_end - c->next) {
		malformed(c);
		return;
	}
	if (c->state == BULK && want > c->copy_left)
		want = c->copy_left;
	if (!want) {
		finish(c, FLAG_CUT); // the rule's limit is reached
		return;
	}
	if (c->next - c->lookahead_start >= c->lookahead_bytes) {
		call->readable = read_ahead(c, bytes_ahead);
		if (!call->readable)
			return;
	}
	u32 from = c->next - c->lookahead_start;
	if (want > c->lookahead_bytes - from)
		want = c->lookahead_bytes - from;
	if (want > CHUNK)
		want = CHUNK;
	u64 at = c->state == BULK ? c->out.size : c->have;
	c->take = want;
	c->at = at;
	FORGET;
	want = c->take;
	at = c->at;
	PINNED(want);
	PINNED(at);
	if (want > CHUNK || at > DATA_BYTES - CHUNK)
		return;
	u8 *to = (c->state == BULK ? c->out.data : c->element) + at;
	if (want == 1) // most lengths and counts have one byte
		*to = bytes_ahead->bytes[from & (LOOKAHEAD - 1)];
	else
		bpf_probe_read_kernel(to, want, bytes_ahead->bytes + from);
	FORGET;
	want = c->take;
	at = c->at;
	c->next += want;
	if (c->state == BULK) {
		c->out.size = at + want;
		c->copy_left -= want;
		c->bulk -= want;
		return;
	}
	c->have = at + want;
	if (c->have >= c->need)
		element_complete(conn, c, direction);
}

static inline int wants_bytes(struct cursor *c)
{
	return c->state == BULK ? c->bulk != 0 : c->state != FINISHED && c->state != NEXT;
}

// Take one step of the cursor through the running call. Return DONE if the call has no more bytes for it, SUBMIT if a sample is
// complete: the last of the frame, or a full one.
static inline int step(struct conn *conn, struct cursor *c, struct lookahead *bytes_ahead, u8 direction)
{
	if (wants_bytes(c)) {
		if ((s32)(c->call.end - c->next) <= 0 || conn->rejected)
			return DONE;
		if (c->state == HEAD && !c->have)
			c->need = head_bytes(conn, c, direction);
		collect(conn, c, bytes_ahead, direction);
	}
	if (c->state == BULK && !c->bulk)
		follow(c);
	if (c->state == NEXT)
		start_op(c);
	if (c->lost == LOST_MALFORMED && !conn->is_kafka) {
		not_a_frame(conn, c, 1);
	} else if (c->state == FINISHED && c->proves) {
		c->proves = 0;
		conn->is_kafka = 1;
	}
	if (c->lost) {
		count(c->lost, 1);
		c->lost = 0;
	}
	if (c->state != FINISHED && c->out.size <= DATA_BYTES - CHUNK)
		return MORE;
	c->out.flags = c->state == FINISHED ? c->out.flags & ~FLAG_MORE : c->out.flags | FLAG_MORE;
	c->leaving = 1;
	return SUBMIT;
}

// Start the next sample of the frame, or the next frame, after a sample was submitted.
static inline void next_sample(struct cursor *c)
{
	c->leaving = 0;
	c->out.part++;
	c->out.size = 0;
	if (c->state == FINISHED)
		expect_head(c);
	else
		__builtin_memset(c->out.data, 0, sizeof(c->out.data)); // as in start_sample
}

// Return 1 if no hook saw bytes before the call across the start of a frame. Inside a frame such bytes are harmless (splice takes
// a body from a socket unseen): the cursor treats them as unreadable.
static inline int gap(struct cursor *c)
{
	return (s32)(c->call.start - (c->state == HEAD ? c->next : c->frame_end)) > 0;
}

// Give up the position in the stream. The next step still submits the copied part of the current frame.
static inline void abandon(struct cursor *c)
{
	c->lock = SEEKING;
	c->proves = 0;
	if (c->state == HEAD)
		expect_head(c);
	else
		finish(c, FLAG_CUT);
}

// Prepare the cursor for the call. Return 0 if it expects none of the call's bytes.
static inline int begin(struct cursor *c)
{
	if (c->lock != SEEKING && gap(c)) {
		count(LOST_GAP, 1);
		abandon(c);
	}
	// A search restarts with each call. The exception is a size that the caller moved by itself, as Java does when it reads:
	// its header follows.
	int size_alone = c->state == HEAD && c->have == 4 && c->next == c->call.start;
	c->resync |= c->lock != LOCKED;
	if (c->lock == SEEKING && !size_alone) {
		if (c->state != FINISHED)
			expect_head(c);
		c->next = c->call.start;
	}
	return (s32)(c->call.end - c->next) > 0;
}

// End the copy of the current frame after the steps of a call are used up. The rest of the frame is skipped.
static inline void stop_copying(struct cursor *c)
{
	if (c->leaving)
		next_sample(c);
	if (c->state != HEAD && c->state != FINISHED) {
		c->proves = 0;
		finish(c, FLAG_CUT);
	}
}

// Hold back a sample: no frame is copied to user space before its connection is proven to speak Kafka. `held` keeps the first
// request if it fits into one sample. Later frames before the proof are lost and counted.
static inline void hold(struct conn *conn, struct cursor *c)
{
	u64 sk = conn->sk;
	if (c->out.flags & FLAG_MORE) {
		c->withheld = 1;
		return;
	}
	if (conn->is_kafka || conn->holding || c->out.part || (c->out.flags & FLAG_RESPONSE) || held.update(&sk, &c->out))
		conn->unheld++;
	else
		conn->holding = 1;
}

static inline void send_held(void *ctx, struct conn *conn)
{
	u64 sk = conn->sk;
	struct sample *first = held.lookup(&sk);
	if (first)
		send_frame(ctx, conn, first);
	else // evicted
		conn->unheld++;
	drop_held(conn);
}

// Send the sample to user space, after the OPEN notice and the held first request.
static inline void submit(void *ctx, struct conn *conn, struct cursor *c)
{
	announce(ctx, conn);
	if (conn->holding)
		send_held(ctx, conn);
	if (conn->unheld) {
		count(LOST_BEFORE_PROOF, conn->unheld);
		conn->unheld = 0;
	}
	send_frame(ctx, conn, &c->out);
}

// Take up to STEPS steps of the cursor. run_send and run_receive are global functions, which the kernel (5.6) verifies once, so a
// program may call them a thousand times. BCC inlines every call, so the loader links these calls: capture/link.py contains their
// names and numbers. The caller writes to a perf buffer, because that requires the program's context.
static inline int run(u64 sk, u8 direction)
{
	u32 which = direction;
	struct conn *conn = conns.lookup(&sk);
	struct cursor *c = running.lookup(&which);
	struct lookahead *bytes_ahead = lookahead.lookup(&which);
	if (!conn || !c || !bytes_ahead)
		return DONE;
	if (c->leaving)
		next_sample(c);
	int outcome = MORE;
#pragma clang loop unroll(disable)
	for (int i = 0; i < STEPS && outcome == MORE; i++)
		outcome = step(conn, c, bytes_ahead, direction);
	if (outcome == SUBMIT && c->out.kind == SAMPLE_FRAME && (!conn->is_kafka || c->withheld)) {
		hold(conn, c);
		return MORE;
	}
	if (!PERF_BUFFER && outcome == SUBMIT)
		submit(0, conn, c);
	return outcome;
}

int run_send(u64 sk)
{
	return run(sk, SEND);
}

int run_receive(u64 sk)
{
	return run(sk, RECEIVE);
}

static int (*call_run_send)(u64 sk) = (void *)CALL_RUN_SEND;
static int (*call_run_receive)(u64 sk) = (void *)CALL_RUN_RECEIVE;

static inline int run_once(void *ctx, u64 sk, struct conn *conn, struct cursor *c, u8 direction)
{
	int outcome = direction == SEND ? call_run_send(sk) : call_run_receive(sk);
	if (PERF_BUFFER && outcome == SUBMIT)
		submit(ctx, conn, c);
	return outcome;
}

// Hop over the frames of a call that its steps did not reach. The copied part of the current frame is submitted, the frames
// behind it are not copied.
static inline void follow_lengths(void *ctx, u64 sk, struct conn *conn, struct cursor *c, u8 direction)
{
	int outcome = MORE;
	stop_copying(c);
	if (c->state == FINISHED) {
		count(LOST_LIMIT, 1);
		run_once(ctx, sk, conn, c, direction);
		stop_copying(c);
	}
	for (int i = 0; i < HOP_RUNS && outcome == MORE && c->lock == LOCKED; i++)
		outcome = direction == SEND ? call_hop_send(sk) : call_hop_receive(sk);
	if (outcome == SUBMIT) {
		run_once(ctx, sk, conn, c, direction);
		stop_copying(c);
	} else if (outcome == MORE) {
		count(LOST_LIMIT, 1);
		c->next = c->call.end;
		seek(c);
	}
}

// Follow the frames in a call that begin() has prepared.
static inline void follow_frames(void *ctx, u64 sk, struct conn *conn, struct cursor *c, u8 direction)
{
	for (int i = 0; i < RUNS; i++)
		if (run_once(ctx, sk, conn, c, direction) == DONE)
			return;
	follow_lengths(ctx, sk, conn, c, direction);
}

// Return nonzero if the running call involves urgent data. key: socket address + enum direction. A global function: inlined, its
// branches would multiply the paths that the verifier walks through all later code.
int is_urgent(u64 key)
{
	u64 sk = key & ~1ull;
	u32 which = key & 1;
	struct conn *conn = conns.lookup(&sk);
	struct cursor *c = running.lookup(&which);
	if (!conn || !c)
		return 0;
	if (which == SEND)
		return c->call.urgent || (!c->call.readable && urgent_sent(sk));
	u32 read_end = conn->read_end;
	conn->read_end = c->call.end;
	return urgent_received(sk, read_end, &c->call);
}

static int (*call_is_urgent)(u64 key) = (void *)CALL_IS_URGENT;

// Process a call that moved the bytes [end - result, end).
static inline void moved(void *ctx, u64 sk, int side, struct call *call, u32 end, s32 result, u8 direction)
{
	u32 which = direction;
	call->start = end - result;
	call->end = end;
	struct conn *conn = connection(ctx, sk, side, call->start, result, direction);
	struct cursor *c = running.lookup(&which);
	if (!conn || !c || conn->rejected)
		return;
	load_cursor(conn, c, direction);
	c->call = *call;
	c->lookahead_bytes = 0;
	if (call_is_urgent(sk + direction)) {
		reject_urgent(ctx, conn);
		return;
	}
	if (begin(c))
		follow_frames(ctx, sk, conn, c, direction);
	save_cursor(ctx, conn, c, direction);
}
