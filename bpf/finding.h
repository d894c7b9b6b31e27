// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a lost position in a stream is found again. What stands in a stream does not decide, for a record may hold frames, with the very
// correlation ids in use; where a stream ends while the other side answers does.
//
// What looks like a request at the start of a call begins a chain: each frame's length says where the next one must start. Nothing of
// these frames leaves, nor of their answers. An exchange confirms the chain: the request is answered while the chain stands exactly at
// the end of the request stream, and the next request comes while the answers' cursor stands exactly at the end of theirs. A client
// that waits for its answers has sent no part of a request then, whatever is in the requests. A client that does not wait may have:
// so it takes two exchanges, the second of a request that was sent after the first was confirmed.
#pragma once
#include "cursor.h"

#define EXCHANGES_TO_FIND 2
#define IN_DOUBT_FOR_EVER (1u << 31)
#define IN_ORDER_WINDOW (1 << 20) // a correlation id further ahead than this is not from the same sequence

static inline u8 request_direction(struct conn *conn)
{
	return conn->role == ROLE_SERVER ? RECEIVE : SEND;
}

static inline u8 answer_direction(struct conn *conn)
{
	return conn->role == ROLE_SERVER ? SEND : RECEIVE;
}

// Whether the cursor of a direction stands behind a whole frame, and nothing follows it in the stream yet.
static inline int stands_at_end(struct conn *conn, u8 direction)
{
	struct cursor_state *state = &conn->cursor_states[direction];
	return !state->inside && !state->have && state->next == sequence_end(conn->sk, direction);
}

// Nothing of the frame leaves: it is skipped by its length. So are raw SASL tokens (SaslHandshake 0), which are no requests.
static inline void skip_frame(struct cursor *c)
{
	c->next = c->frame_end;
	expect_head(c);
}

static inline void withhold(struct cursor *c, u32 correlation_id)
{
	lost(c, LOST_RESYNC);
	c->out.correlation_id = correlation_id;
	skip_frame(c);
}

// Makes room for one more request in flight: the oldest is forgotten.
static inline void forget_oldest(struct conn *conn)
{
	if (conn->tail - conn->head < IN_FLIGHT)
		return;
	count(LOST_OVERFLOW, !conn->in_flight[conn->head & (IN_FLIGHT - 1)].unsure);
	conn->head++;
}

// Which of what is in flight was answered is not known where the position of the answers was lost.
static inline void forget_in_flight(struct conn *conn)
{
	conn->head = conn->tail;
	conn->overflow_head = conn->overflow_tail;
}

// Requests were skipped, which may be answered. Without a branch: the verifier walks what follows each of them.
static inline void skipped(struct conn *conn, u32 requests)
{
	conn->unseen += (~conn->unseen >> 31) * requests;
}

static inline void answer_skipped(struct conn *conn)
{
	conn->unseen -= (-conn->unseen & ~conn->unseen) >> 31;
}

static inline void look_at_lock(struct conn *conn, u8 lock)
{
	if (conn->answers_locked && lock != LOCKED)
		forget_in_flight(conn);
	conn->answers_locked = lock == LOCKED;
}

static inline void start_chain(struct conn *conn, struct cursor *c)
{
	if (conn->chaining) // the frames of the chain before it were none
		conn->tail = (s32)(conn->head - conn->chain) > 0 ? conn->head : conn->chain;
	look_at_lock(conn, conn->cursor_states[answer_direction(conn)].lock);
	conn->chaining = 1;
	conn->chain = conn->tail;
	conn->mark = conn->tail;
	conn->confirmations = 0;
	conn->answered = 0;
	c->lock = TENTATIVE;
}

// Takes note of a request's head while the position in either stream is lost. Returns whether the one of the requests is known.
static inline int request_found(struct conn *conn, struct cursor *c, u32 api_key, u32 correlation_id)
{
	struct cursor_state *answers = &conn->cursor_states[answer_direction(conn)];
	if (c->lock == SEEKING || (c->lock == TENTATIVE && correlation_id - c->out.correlation_id - 1 >= IN_ORDER_WINDOW)) {
		start_chain(conn, c);
	} else if (answers->lock != SEEKING && !stands_at_end(conn, answer_direction(conn))) {
		if (answers->lock == TENTATIVE)
			answers->lock = SEEKING;
	} else if (answers->lock != SEEKING && conn->answered) {
		conn->answered = 0;
		conn->mark = conn->tail;
		if (++conn->confirmations >= EXCHANGES_TO_FIND) {
			c->lock = LOCKED;
			answers->lock = LOCKED;
			conn->chaining = 0;
			conn->sasl_raw = 0;
			conn->unseen = 0;
			conn->ids = IDS_NONE;
			conn->acks_unread = 0;
			conn->is_kafka = 1;
		}
	}
	if (c->lock == LOCKED)
		return 1;
	struct in_flight entry = { .correlation_id = correlation_id, .api_key = api_key, .unsure = 1 };
	if (answers->lock == LOCKED && (overflowed(conn) || conn->tail - conn->head == IN_FLIGHT)) {
		c->lock = SEEKING; // until there is room: what the next answers are of is known
	} else {
		forget_oldest(conn);
		conn->in_flight[conn->tail++ & (IN_FLIGHT - 1)] = entry;
	}
	withhold(c, correlation_id);
	return 0;
}

// Takes note of the answer to the request that was in flight at `number`, while a position is lost.
static inline void answer_matched(struct conn *conn, struct cursor *c, u32 number)
{
	if (c->lock == SEEKING) {
		c->lock = TENTATIVE;
		conn->confirmations = 0;
		conn->answered = 0;
		conn->mark = number;
	}
	conn->answered |= number != conn->head && (s32)(number - conn->mark) >= 0 && stands_at_end(conn, request_direction(conn));
}
