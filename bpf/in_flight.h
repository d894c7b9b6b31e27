// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Keeps the requests in flight, and matches a response to one of them. A Kafka server answers the requests of a connection in order,
// so the programs number all requests that expect a response, and count the responses.
//
// A skipped request gets a number, too, though it may expect no response. So responses to it and to all requests before it are in
// doubt: until the count of responses reaches the number behind the skipped request, no response is matched. Afterwards the count may
// still be too low, by the number of skipped requests that expected no response. Then the correlation id identifies the request,
// which requires rising ids. The first match makes the count certain again.
//
// Numbers are compared as signed differences. Calls that send and calls that receive run concurrently, so only the programs of one
// direction write each field that this file uses. Exceptions: both directions write `responses_locked`, `lock` of the cursors and the
// fields of the search in resync.h; not_a_frame and reject_urgent put all requests in doubt from either direction.
#pragma once
#include "big_endian.h"
#include "counters.h"
#include "maps.h"
#include "sample.h"
#include "sock.h"
#include "verifier.h"

#define MAX_DOUBT (1u << 30)      // requests in doubt
#define MAX_UNANSWERED 128        // requests in flight while a position is lost
#define IN_ORDER_WINDOW (1 << 20) // a correlation id that is further ahead belongs to another sequence

// How a response relates to the oldest known request in flight.
enum match {
	MATCHED,   // it answers that request
	UNMATCHED, // it answers no known request
	IN_DOUBT,  // it may answer a skipped request
	PASSED,    // it answers a later request
};

static inline u8 request_direction(struct conn *conn)
{
	return conn->side == SIDE_SERVER ? RECEIVE : SEND;
}

static inline u8 response_direction(struct conn *conn)
{
	return conn->side == SIDE_SERVER ? SEND : RECEIVE;
}

static inline u32 later(u32 one, u32 other)
{
	return (s32)(one - other) > 0 ? one : other;
}

// Return the number of the first request whose response is not in doubt.
static inline u32 doubt_end(struct conn *conn)
{
	return later(conn->doubted_by_requests, conn->doubted_by_responses);
}

static inline u32 oldest_known(struct conn *conn)
{
	return later(conn->completed, doubt_end(conn));
}

static inline u32 known_before(struct conn *conn, u32 number)
{
	s32 known = number - oldest_known(conn);
	return known > 0 ? known : 0;
}

// Put the responses to all requests so far in doubt. For the requests' direction, and for resets of the whole connection.
static inline void doubt_requests(struct conn *conn)
{
	conn->doubted_by_requests = conn->asked;
}

// Skip `one` requests (0 or 1). It has no branch, because the verifier walks the code that follows once for each branch. The doubt
// is stored before the number: a response may be processed on another CPU.
static inline void skip_request(struct conn *conn, u32 one)
{
	conn->doubted_by_requests += (conn->asked + one - conn->doubted_by_requests) & -one;
	FORGET;
	conn->asked += one;
}

static inline void skip_requests(struct conn *conn, u32 requests)
{
	if (conn->asked - conn->completed > MAX_DOUBT) // more than a connection can have in flight
		requests = 0;
	conn->doubted_by_requests = conn->asked + requests;
	FORGET;
	conn->asked += requests;
}

// Return 1 if the count of responses is certain.
static inline int is_certain(struct conn *conn)
{
	return (s32)(doubt_end(conn) - conn->proven) <= 0;
}

// Mark the count as uncertain: a response arrived that none of the `asked` requests expects.
static inline void doubt_count(struct conn *conn, u32 asked)
{
	conn->doubted_by_responses = asked;
	conn->proven = asked - 1;
}

// Return 1 if a running call moves bytes of requests. Its hook runs when the call returns, and the responses may arrive earlier.
static inline int is_late(struct conn *conn)
{
	u8 direction = request_direction(conn);
	return (s32)(sequence_end(conn->sk, direction) - conn->cursor_states[direction].next) > 0;
}

// Count responses that are not matched. The count is certain if it reaches that of the requests, and uncertain if it exceeds it or
// if a request is late. Lateness is checked before `asked` is read: a request that is no longer late is among the `asked`. The
// fields follow the count: a number that is 2^31 behind it would compare as later.
static inline void count_responses(struct conn *conn, u32 responses)
{
	int late = is_late(conn);
	FORGET;
	u32 asked = *(volatile u32 *)&conn->asked;
	conn->doubted_by_responses = later(conn->doubted_by_responses, conn->completed);
	conn->proven = later(conn->proven, conn->completed - MAX_DOUBT);
	s32 left = asked - conn->completed - responses;
	if (left > 0) {
		conn->completed += responses;
		return;
	}
	conn->completed = asked;
	if (left < 0 || late)
		doubt_count(conn, asked);
	else
		conn->proven = asked;
}

// Return the caller's doubt field, raised to all requests so far if the position of the responses was lost. After such a loss the
// programs do not know which of the requests in flight were answered. The caller stores the result in its own field.
static inline u32 look_at_lock(struct conn *conn, u8 lock, u32 doubted)
{
	if (conn->responses_locked && lock != LOCKED)
		doubted = conn->asked;
	conn->responses_locked = lock == LOCKED;
	return doubted;
}

static inline struct overflow_key overflow_key(struct conn *conn, u32 number)
{
	struct overflow_key key = { .conn = conn->id, .number = number };
	return key;
}

// Return 1 if the next request does not fit into `in_flight`. While `overflow` contains known requests, later ones go there, too.
// Clear `overflowing` once no request is known. So only the requests' direction calls it.
static inline int is_full(struct conn *conn)
{
	u32 known = known_before(conn, conn->asked);
	conn->overflowing &= !!known;
	return conn->overflowing || known >= IN_FLIGHT;
}

// Return the number of requests in flight that are kept while a position is lost. If the other end has sent nothing, it may
// never answer, and the requests would stay in `overflow`.
static inline u32 most_unanswered(struct conn *conn)
{
	return conn->last_ns[response_direction(conn)] ? MAX_UNANSWERED : IN_FLIGHT;
}

// Store a request in `in_flight`, or in `overflow` if it is full.
static inline void keep(struct conn *conn, struct in_flight *entry)
{
	if (!is_full(conn)) {
		conn->in_flight[conn->asked & (IN_FLIGHT - 1)] = *entry;
	} else {
		struct overflow_key key = overflow_key(conn, conn->asked);
		overflow.update(&key, entry); // if this fails, the response counts the request as evicted
		conn->overflow_start = conn->overflowing ? conn->overflow_start : conn->asked;
		conn->overflowing = 1;
	}
	FORGET;
	conn->asked++; // after the entry is stored: another CPU may process the response now
}

// Return 1 if the correlation id is not above those of the requests in flight. An id 2^31 or more above the first of them counts
// as below it. Clients use rising ids, except those that repeat ids, and the Java client, which may send requests in another order
// than it created them.
static inline int falls(struct conn *conn, u32 correlation_id)
{
	return (s32)(correlation_id - conn->last_correlation_id) <= 0 || (s32)(correlation_id - conn->first_correlation_id) <= 0;
}

static inline void request_taken(struct conn *conn, struct sample *request)
{
	struct in_flight entry = { .correlation_id = request->correlation_id,
				   .seen_us = request->ts_ns / 1000,
				   .api_key = request->api_key,
				   .api_version = request->api_version };
	conn->doubted_by_requests =
		look_at_lock(conn, conn->cursor_states[response_direction(conn)].lock, conn->doubted_by_requests);
	// These fields follow the count, as in count_responses.
	conn->doubted_by_requests = later(conn->doubted_by_requests, conn->completed);
	conn->repeated = later(conn->repeated, conn->completed);
	conn->overflow_start = later(conn->overflow_start, conn->completed);
	int idle = (s32)(conn->asked - conn->completed) <= 0;
	int fell = !idle && falls(conn, entry.correlation_id), certain = is_certain(conn);
	if (fell && conn->responses_locked && certain)
		conn->repeated = conn->asked;
	else if (fell)
		doubt_requests(conn);
	if (idle || (fell && !certain))
		conn->first_correlation_id = entry.correlation_id;
	conn->last_correlation_id = entry.correlation_id;
	u32 known = known_before(conn, conn->asked);
	if (!conn->responses_locked && known >= most_unanswered(conn)) {
		count(LOST_OVERFLOW, known);
		doubt_requests(conn);
	}
	keep(conn, &entry);
}

// A global function, as in frames.h: inlined, it would be most of the code that the verifier walks.
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

// Copy the request with this number to `request`. Return 0 if it was evicted from `overflow`.
static inline int find_request(struct conn *conn, u32 number, struct in_flight *request)
{
	struct overflow_key key = overflow_key(conn, number);
	struct in_flight *entry = is_overflow(conn, number) ? overflow.lookup(&key) : &conn->in_flight[number & (IN_FLIGHT - 1)];
	if (entry)
		*request = *entry;
	return !!entry;
}

// Mark the request and all before it as answered.
static inline void count_up_to(struct conn *conn, u32 number)
{
	struct overflow_key key = overflow_key(conn, number);
	if (is_overflow(conn, number))
		overflow.delete(&key);
	conn->completed = number + 1;
}

// Return how the response at the cursor relates to the oldest known request, and copy that request to `c->request`. PASSED
// removes the request, whose response was not seen: the caller repeats the call for the next one.
static inline int answered(struct conn *conn, struct cursor *c)
{
	struct in_flight none = { .api_key = NO_API };
	c->request = none;
	conn->doubted_by_responses = look_at_lock(conn, c->lock, conn->doubted_by_responses);
	int responses_followed = c->lock == LOCKED;
	int followed = responses_followed && conn->cursor_states[request_direction(conn)].lock == LOCKED;
	u32 asked = *(volatile u32 *)&conn->asked;
	if (!responses_followed && (s32)(conn->doubted_by_responses - asked) > 0) // a chain was given up
		conn->doubted_by_responses = asked;
	if (responses_followed && (s32)(conn->completed - doubt_end(conn)) < 0) {
		count_responses(conn, 1);
		return IN_DOUBT;
	}
	u32 number = oldest_known(conn);
	if ((s32)(number - asked) >= 0) {
		if (followed && conn->acks_unread && conn->completed == asked && !is_late(conn)) // it answers that Produce
			conn->completed = asked + 1;
		else if (followed)
			count_responses(conn, 1);
		return UNMATCHED;
	}
	if (followed && !is_certain(conn) && is_late(conn)) { // it may answer a request that is late
		conn->doubted_by_responses = asked;
		return UNMATCHED;
	}
	if (!find_request(conn, number, &c->request)) {
		count_up_to(conn, number);
		count(LOST_OVERFLOW, 1);
		return UNMATCHED;
	}
	FORGET;
	if ((s32)(number - doubt_end(conn)) < 0) // doubted meanwhile: another request may be in the slot
		return UNMATCHED;
	s32 ahead = be32(c->element + 4) - c->request.correlation_id;
	int rises = (s32)(conn->repeated - number) <= 0;
	if (!ahead || (ahead > 0 && ahead < IN_ORDER_WINDOW && rises)) {
		count_up_to(conn, number);
		if (!ahead) {
			conn->proven = conn->completed;
			conn->doubted_by_responses = later(conn->doubted_by_responses, conn->completed);
		}
		return ahead ? PASSED : MATCHED;
	}
	if (followed)
		conn->doubted_by_responses = asked;
	return UNMATCHED;
}

int take_response(u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	u32 which = conn ? response_direction(conn) : SEND;
	struct cursor *c = running.lookup(&which);
	return conn && c ? answered(conn, c) : UNMATCHED;
}

static int (*call_take_response)(u64 sk) = (void *)CALL_TAKE_RESPONSE;
