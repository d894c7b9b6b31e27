// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds a lost position in a stream again. The bytes of a stream cannot prove a position, because a record may contain whole
// frames with the correlation ids in use. The evidence is where one stream ends when the other side answers.
//
// Bytes at the start of a call that look like a request begin a chain: the length of each frame gives the start of the next. No
// bytes of these frames or of their responses are copied to user space. An exchange confirms the chain: the response to a request
// arrives while the chain ends exactly at the end of the request stream, and the next request arrives while the responses' cursor
// is exactly at the end of the response stream. A client that waits for its responses has sent no part of another request at that
// time, whatever its requests contain. A client that does not wait may have sent one. So two exchanges are required, the second
// with a request that the client sent after the first was confirmed.
//
// A client that does not wait may always have sent a part of the next request. Most clients begin each request with a send call.
// So at a client's end a response also confirms the chain if the answered request, and each request of the chain behind it, began
// with a call. The next request has to do so, too.
#pragma once
#include "cursor.h"
#include "in_flight.h"
#include "maps.h"
#include "sample.h"
#include "sock.h"

#define EXCHANGES_TO_FIND 2

// How a response confirms a chain.
enum evidence {
	AT_END = 1,       // the request stream ended behind a frame
	BY_OWN_CALLS = 2, // requests began with calls
};

// Return 1 if the cursor of a direction is behind a whole frame and at the current end of the stream.
static inline int stands_at_end(struct conn *conn, u8 direction)
{
	struct cursor_state *state = &conn->cursor_states[direction];
	return !state->inside && !state->have && state->next == sequence_end(conn->sk, direction);
}

// Skip a frame by its length, so that no byte of it is copied. Also used for raw SASL tokens (SaslHandshake 0), which are no
// requests.
static inline void skip_frame(struct cursor *c)
{
	c->next = c->frame_end;
	expect_head(c);
}

// Return 1 if the request stream ends within a frame.
static inline int is_incomplete(struct conn *conn)
{
	u8 direction = request_direction(conn);
	struct cursor_state *state = &conn->cursor_states[direction];
	return state->inside || state->have || (s32)(state->next - sequence_end(conn->sk, direction)) > 0;
}

// Give the chain up if a response shows that it may not consist of requests. No server answers an incomplete request. One that began
// with a call may be incomplete while earlier requests are answered. How many of them are in flight is not known, so each chain
// given up here doubles the tolerated number.
static inline void check_chain(struct conn *conn, u32 correlation_id, int matched)
{
	u8 direction = request_direction(conn);
	struct cursor_state *requests = &conn->cursor_states[direction];
	if (requests->lock != TENTATIVE || stands_at_end(conn, direction))
		return;
	int answers_last = matched && correlation_id == requests->correlation_id && is_incomplete(conn);
	if (!answers_last && conn->own_calls && ++conn->early_responses <= conn->tolerated + 1)
		return;
	conn->tolerated = (conn->tolerated << 1 | 1) & (MAX_UNANSWERED - 1);
	requests->lock = SEEKING;
}

static inline void withhold(struct cursor *c, u32 correlation_id)
{
	lost(c, LOST_RESYNC);
	c->resync = 1;
	c->out.correlation_id = correlation_id;
	skip_frame(c);
}

// Forget the requests of the chain that are not answered. Their numbers are used again.
static inline void forget_chained(struct conn *conn)
{
	conn->asked = later(conn->chain, oldest_known(conn));
	conn->mark = conn->asked;
	if ((s32)(conn->overflow_start - conn->asked) >= 0)
		conn->overflowing = 0;
}

static inline void start_chain(struct conn *conn, struct cursor *c, u32 correlation_id)
{
	u8 responses = conn->cursor_states[response_direction(conn)].lock;
	if (conn->chaining) // the previous chain did not consist of frames
		forget_chained(conn);
	conn->doubted_by_requests = look_at_lock(conn, responses, conn->doubted_by_requests);
	if (responses != LOCKED)
		doubt_requests(conn);
	conn->chaining = 1;
	conn->chain = conn->asked;
	conn->mark = conn->asked;
	conn->first_correlation_id = correlation_id;
	conn->confirmations = 0;
	conn->answered = 0;
	c->lock = TENTATIVE;
}

// Store a request of the chain. If too many are not answered, forget those of the chain, or search anew if the others alone are
// too many.
static inline void keep_chained(struct conn *conn, struct cursor *c, u32 api_key, u32 correlation_id)
{
	struct in_flight entry = { .correlation_id = correlation_id, .api_key = api_key, .unsure = 1 };
	u32 most = most_unanswered(conn);
	if (known_before(conn, conn->asked) >= most)
		forget_chained(conn);
	if (known_before(conn, conn->asked) >= most) { // requests from before the chain
		c->lock = SEEKING;
		return;
	}
	keep(conn, &entry);
	conn->last_correlation_id = correlation_id;
}

// Record the header of a request while the position in either stream is lost. Return 1 if the position of the requests is known.
static inline int request_found(struct conn *conn, struct cursor *c, u32 api_key, u32 correlation_id)
{
	struct cursor_state *responses = &conn->cursor_states[response_direction(conn)];
	int own_call = request_direction(conn) == SEND && c->next - c->have == c->call.start;
	if (!own_call) {
		conn->own_calls = 0;
		conn->answered &= AT_END;
	}
	conn->early_responses = 0;
	if (c->lock == SEEKING || (c->lock == TENTATIVE && correlation_id - c->out.correlation_id - 1 >= IN_ORDER_WINDOW)) {
		start_chain(conn, c, correlation_id);
	} else if (responses->lock != SEEKING && !stands_at_end(conn, response_direction(conn))) {
		if (responses->lock == TENTATIVE)
			responses->lock = SEEKING;
	} else if (responses->lock != SEEKING && (conn->answered == AT_END || (conn->answered && own_call))) {
		conn->answered = 0;
		conn->mark = conn->asked;
		if (++conn->confirmations >= EXCHANGES_TO_FIND) {
			if (c->lock != LOCKED) {
				conn->sasl_raw = 0;
				conn->acks_unread = 0;
			}
			c->lock = LOCKED;
			responses->lock = LOCKED;
			conn->chaining = 0;
			conn->tolerated = 0;
			conn->is_kafka = 1;
		}
	}
	int found = c->lock == LOCKED;
	if (!found) {
		keep_chained(conn, c, api_key, correlation_id);
		withhold(c, correlation_id);
	}
	conn->own_calls += own_call && conn->own_calls < MAX_UNANSWERED; // last: a response may be processed on another CPU
	return found;
}

// Record the response to the last completed request while a position is lost. It may start or confirm an exchange.
static inline void response_matched(struct conn *conn, struct cursor *c)
{
	u32 number = conn->completed - 1;
	if (c->lock == SEEKING) {
		c->lock = TENTATIVE;
		conn->confirmations = 0;
		conn->answered = 0;
		conn->mark = number;
	}
	if ((s32)(number - conn->mark) < 0)
		return;
	if (stands_at_end(conn, request_direction(conn)))
		conn->answered = AT_END;
	else if (!conn->answered && conn->asked - number - 1 < conn->own_calls)
		conn->answered = BY_OWN_CALLS;
}
