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

static inline void start_chain(struct conn *conn, struct cursor *c, u32 correlation_id)
{
	if (conn->chaining) { // the frames of the chain before it were none
		conn->asked = later(conn->settled, conn->chain);
		if ((s32)(conn->doubted_by_requests - conn->asked) > 0)
			doubt_requests(conn);
	}
	conn->doubted_by_requests =
		look_at_lock(conn, conn->cursor_states[answer_direction(conn)].lock, conn->doubted_by_requests);
	conn->chaining = 1;
	conn->chain = conn->asked;
	conn->mark = conn->asked;
	conn->first_correlation_id = correlation_id;
	conn->confirmations = 0;
	conn->answered = 0;
	c->lock = TENTATIVE;
}

// Takes note of a request's head while the position in either stream is lost. Returns whether the one of the requests is known.
static inline int request_found(struct conn *conn, struct cursor *c, u32 api_key, u32 correlation_id)
{
	struct cursor_state *answers = &conn->cursor_states[answer_direction(conn)];
	if (c->lock == SEEKING || (c->lock == TENTATIVE && correlation_id - c->out.correlation_id - 1 >= IN_ORDER_WINDOW)) {
		start_chain(conn, c, correlation_id);
	} else if (answers->lock != SEEKING && !stands_at_end(conn, answer_direction(conn))) {
		if (answers->lock == TENTATIVE)
			answers->lock = SEEKING;
	} else if (answers->lock != SEEKING && conn->answered) {
		conn->answered = 0;
		conn->mark = conn->asked;
		if (++conn->confirmations >= EXCHANGES_TO_FIND) {
			if (c->lock != LOCKED) {
				conn->sasl_raw = 0;
				conn->acks_unread = 0;
			}
			c->lock = LOCKED;
			answers->lock = LOCKED;
			conn->chaining = 0;
			conn->is_kafka = 1;
		}
	}
	if (c->lock == LOCKED)
		return 1;
	struct in_flight entry = { .correlation_id = correlation_id, .api_key = api_key, .unsure = 1 };
	if (answers->lock == LOCKED && is_full(conn)) {
		c->lock = SEEKING; // until there is space: what the next answers are to is known
	} else {
		keep_latest(conn, &entry);
		conn->last_correlation_id = correlation_id;
	}
	withhold(c, correlation_id);
	return 0;
}

// Takes note of the answer to the last request that was settled, while a position is lost.
static inline void answer_matched(struct conn *conn, struct cursor *c)
{
	u32 number = conn->settled - 1;
	if (c->lock == SEEKING) {
		c->lock = TENTATIVE;
		conn->confirmations = 0;
		conn->answered = 0;
		conn->mark = number;
	}
	conn->answered |= (s32)(number - conn->mark) >= 0 && stands_at_end(conn, request_direction(conn));
}
