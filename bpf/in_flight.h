// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Requests in flight, and which of them an answer is to. Kafka answers the requests of a connection in their order, so all that want
// an answer are numbered, and their answers are counted.
//
// A skipped request has a number, too, though it may want no answer. So the answer to it and to each request before it is in doubt, and
// as many answers as there are numbers before its end are taken for none. After these the count may still lag behind, by the skipped
// requests that wanted none. Then the correlation id tells the requests apart, which takes ids that rise. The first match
// proves the count again.
//
// Numbers compare as signed differences. Calls that send and calls that receive run at the same time, so each field has one writer.
#pragma once
#include "connection.h"

#define IN_ORDER_WINDOW (1 << 20) // a correlation id further ahead than this is not from the same sequence

// Of a response: it is to the oldest request in flight, to none that is known, perhaps to a skipped one, or to a later one.
enum answer { MATCHED, UNMATCHED, IN_DOUBT, PASSED };

static inline u8 request_direction(struct conn *conn)
{
	return conn->role == ROLE_SERVER ? RECEIVE : SEND;
}

static inline u8 answer_direction(struct conn *conn)
{
	return conn->role == ROLE_SERVER ? SEND : RECEIVE;
}

static inline u32 later(u32 one, u32 other)
{
	return (s32)(one - other) > 0 ? one : other;
}

// Answers to requests before this number are in doubt.
static inline u32 doubt_end(struct conn *conn)
{
	return later(conn->doubted_by_requests, conn->doubted_by_answers);
}

static inline u32 oldest_known(struct conn *conn)
{
	return later(conn->settled, doubt_end(conn));
}

static inline u32 known_before(struct conn *conn, u32 number)
{
	s32 known = number - oldest_known(conn);
	return known > 0 ? known : 0;
}

// All requests up to now are in doubt; for the requests' direction.
static inline void doubt_requests(struct conn *conn)
{
	conn->doubted_by_requests = conn->asked;
}

// Skips no request or one. Without a branch: the verifier walks what follows each of them.
static inline void skip_request(struct conn *conn, u32 one)
{
	conn->asked += one;
	conn->doubted_by_requests += (conn->asked - conn->doubted_by_requests) & -one;
}

static inline void skip_requests(struct conn *conn, u32 requests)
{
	conn->asked += requests;
	doubt_requests(conn);
}

// Skips the answer to the oldest request, if there is one. Without a branch.
static inline void skip_answer(struct conn *conn)
{
	conn->settled += (u32)(conn->settled - conn->asked) >> 31;
}

// The count may be wrong: an answer came though nothing wanted one. Or its request is late, of which the hook runs when the call returns.
static inline void doubt_count(struct conn *conn)
{
	conn->doubted_by_answers = conn->asked;
	conn->proven = conn->asked - 1;
}

// Counts answers.
static inline void settle(struct conn *conn, u32 answers)
{
	s32 left = conn->asked - conn->settled - answers;
	conn->settled += answers;
	if (left > 0)
		return;
	conn->settled = conn->asked;
	conn->proven = conn->asked;
	if (left < 0)
		doubt_count(conn);
}

// Where the position of the answers was lost, it is not known which of the requests in flight were answered. Returns the number up to
// which this is so, for the caller's own field.
static inline u32 look_at_lock(struct conn *conn, u8 lock, u32 doubted)
{
	if (conn->answers_locked && lock != LOCKED)
		doubted = conn->asked;
	conn->answers_locked = lock == LOCKED;
	return doubted;
}

static inline struct overflow_key overflow_key(struct conn *conn, u32 number)
{
	struct overflow_key key = { .conn = conn->id, .number = number };
	return key;
}

// Whether there is no place in `in_flight`. What is in `overflow` goes behind all that is not.
static inline int is_full(struct conn *conn)
{
	u32 known = known_before(conn, conn->asked);
	conn->overflowing &= !!known;
	return conn->overflowing || known >= IN_FLIGHT;
}

// While answers are not followed, many requests may stay unanswered: the latest are kept.
static inline void keep_latest(struct conn *conn, struct in_flight *entry)
{
	struct in_flight *slot = &conn->in_flight[conn->asked & (IN_FLIGHT - 1)];
	count(LOST_OVERFLOW, known_before(conn, conn->asked) >= IN_FLIGHT && !slot->unsure);
	*slot = *entry;
	conn->overflowing = 0;
	conn->asked++;
}

// Whether the correlation id does not follow those of the requests in flight. They rise, by less than 2^31 in all, unless a client
// repeats them, or sends requests in another order than that in which it made them, as Java does.
static inline int falls(struct conn *conn, u32 correlation_id)
{
	return (s32)(correlation_id - conn->last_correlation_id) <= 0 || (s32)(correlation_id - conn->first_correlation_id) <= 0;
}

static inline void request_taken(struct conn *conn, struct sample *request)
{
	struct in_flight entry = { .correlation_id = request->correlation_id,
				   .ts_us = request->ts_ns / 1000,
				   .api_key = request->api_key,
				   .api_version = request->api_version };
	conn->doubted_by_requests =
		look_at_lock(conn, conn->cursor_states[answer_direction(conn)].lock, conn->doubted_by_requests);
	int idle = (s32)(conn->asked - conn->settled) <= 0;
	int fell = !idle && falls(conn, entry.correlation_id), certain = (s32)(doubt_end(conn) - conn->proven) <= 0;
	if (fell && conn->answers_locked && certain)
		conn->repeated = conn->asked;
	else if (fell)
		doubt_requests(conn);
	if (idle || (fell && !certain))
		conn->first_correlation_id = entry.correlation_id;
	conn->last_correlation_id = entry.correlation_id;
	if (!conn->answers_locked) {
		keep_latest(conn, &entry);
		return;
	}
	if (!is_full(conn)) {
		conn->in_flight[conn->asked & (IN_FLIGHT - 1)] = entry;
	} else {
		struct overflow_key key = overflow_key(conn, conn->asked);
		overflow.update(&key, &entry); // without a place it counts as evicted, when its answer comes
		conn->overflow_start = conn->overflowing ? conn->overflow_start : conn->asked;
		conn->overflowing = 1;
	}
	conn->asked++; // only now: its answer may come on another CPU
}

// A global function, as in frames.h: inlined it would be most of what the verifier walks.
int take_request(u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	u32 which = conn ? request_direction(conn) : SEND;
	struct cursor *c = running.lookup(&which);
	if (conn && c)
		request_taken(conn, &c->out);
	return 0;
}

static int (*call_take_request)(u64 sk) = (void *)CALL_TAKE_REQUEST;

static inline int is_overflow(struct conn *conn, u32 number)
{
	return conn->overflowing && (s32)(number - conn->overflow_start) >= 0;
}

// Whether a request is known by its number; `request` is it then.
static inline int find_request(struct conn *conn, u32 number, struct in_flight *request)
{
	struct overflow_key key = overflow_key(conn, number);
	struct in_flight *entry = is_overflow(conn, number) ? overflow.lookup(&key) : &conn->in_flight[number & (IN_FLIGHT - 1)];
	if (entry)
		*request = *entry;
	return !!entry;
}

// Nothing before the request is in flight any more, nor is it.
static inline void settle_up_to(struct conn *conn, u32 number)
{
	struct overflow_key key = overflow_key(conn, number);
	if (is_overflow(conn, number))
		overflow.delete(&key);
	conn->settled = number + 1;
}

// Which request the next response is to, `request` in the cursor. Correlation ids that are passed over had no answer that was seen.
static inline int answered(struct conn *conn, struct cursor *c)
{
	struct in_flight none = { .api_key = NO_API };
	c->request = none;
	conn->doubted_by_answers = look_at_lock(conn, c->lock, conn->doubted_by_answers);
	int answers_followed = c->lock == LOCKED;
	int followed = answers_followed && conn->cursor_states[request_direction(conn)].lock == LOCKED;
	if (answers_followed && (s32)(conn->settled - doubt_end(conn)) < 0) {
		settle(conn, 1);
		return IN_DOUBT;
	}
	u32 number = oldest_known(conn);
	if (!answers_followed)
		number = later(number, conn->asked - IN_FLIGHT);
	if ((s32)(number - conn->asked) >= 0) {
		if (followed && conn->acks_unread) // it is to that Produce
			conn->settled = conn->asked + 1;
		else if (followed)
			settle(conn, 1);
		return UNMATCHED;
	}
	if (!find_request(conn, number, &c->request)) {
		settle_up_to(conn, number);
		count(LOST_OVERFLOW, 1);
		return UNMATCHED;
	}
	s32 ahead = be32(c->element + 4) - c->request.correlation_id;
	int rises = (s32)(conn->repeated - number) <= 0;
	if (!ahead || (ahead > 0 && ahead < IN_ORDER_WINDOW && rises)) {
		settle_up_to(conn, number);
		if (!ahead)
			conn->proven = conn->settled;
		return ahead ? PASSED : MATCHED;
	}
	if (followed)
		conn->doubted_by_answers = conn->asked;
	return UNMATCHED;
}

int take_answer(u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	u32 which = conn ? answer_direction(conn) : SEND;
	struct cursor *c = running.lookup(&which);
	return conn && c ? answered(conn, c) : UNMATCHED;
}

static int (*call_take_answer)(u64 sk) = (void *)CALL_TAKE_ANSWER;
