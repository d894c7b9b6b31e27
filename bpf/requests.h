// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Parses frame headers. They decide if a stream is Kafka, give the API of a request, and match a response to its request.
#pragma once
#include "big_endian.h"
#include "connection.h"
#include "counters.h"
#include "cursor.h"
#include "resync.h"
#include "in_flight.h"
#include "kernel_structs.h"
#include "lifecycle.h"
#include "maps.h"
#include "sample.h"
#include "peer_limit.h"
#include "sock.h"

#define REQUEST_HEAD 14  // bytes: size, API key and version, correlation id, length of the client id
#define SHORT_HEAD 12    // bytes without a client id: ControlledShutdown 0
#define RESPONSE_HEAD 8  // bytes: size, correlation id
#define TLS_HEAD 5       // bytes of a TLS record's header: type, version, length
#define SASL_REQUESTS 64 // a correlation id this close to the expected one ends the raw tokens
#define CLOSE_BY 64      // distance of ids of consecutive requests: the client may have sent others to other brokers
#define MAX_CLIENT_ID 512
#define MAX_VERSIONS 32 // versions of an API: see `rules`
#define NO_CLIENT_ID 0xffff
#define CONTROLLED_SHUTDOWN_0 (API_CONTROLLED_SHUTDOWN << 16) // API key and version

// Return the bytes that the cursor needs for a header. While raw SASL tokens may follow, that is the size alone: a token can be
// shorter than a header. In a search on an unproven connection it is enough to recognize TLS.
static inline u16 head_bytes(struct conn *conn, struct cursor *c, u8 direction)
{
	if (c->lock == SEEKING && !conn->is_kafka)
		return TLS_HEAD;
	return conn->sasl_raw ? 4 : is_request(conn, direction) ? REQUEST_HEAD : RESPONSE_HEAD;
}

static inline struct rule *rule_of(u32 api_key, u32 api_version)
{
	u32 index = api_key << 5 | api_version;
	return api_key < API_KEYS && api_version < MAX_VERSIONS ? rules.lookup(&index) : 0;
}

static inline void start_sample(struct conn *conn, struct cursor *c, u8 kind)
{
	struct sample *out = &c->out;
	__builtin_memset(out, 0, sizeof(*out)); // user space gets the whole struct: it must contain nothing of an earlier frame
	out->ts_ns = bpf_ktime_get_ns();
	out->conn = conn->id;
	out->kind = kind;
	c->withheld = 0;
}

static inline void start_frame(struct conn *conn, struct cursor *c, u32 size, u32 correlation_id)
{
	start_sample(conn, c, SAMPLE_FRAME);
	c->out.frame_bytes = size + 4;
	c->out.tcp_seq = c->next - c->have;
	c->out.correlation_id = correlation_id;
	c->out.flags = c->resync * FLAG_RESYNC;
	c->resync = 0;
}

// Return 1 if the bytes are the start of a TLS record. Read as a frame size they would mean 350 MB; some TLS hellos continue like
// the API key, version and correlation id of a Fetch.
static inline int starts_tls(struct cursor *c)
{
	u8 type = c->element[0] - 0x14; // from change_cipher_spec to application_data, RFC 8446, 5.1
	return type < 4 && c->element[1] == 3;
}

// Return 1 if the call is one TLS record, or the header of one, which OpenSSL reads by itself. On a connection whose beginning
// was missed this is the only sign of TLS.
static inline int one_tls_record(struct cursor *c)
{
	u32 bytes = c->call.end - c->call.start;
	int fits = bytes == TLS_HEAD || bytes == TLS_HEAD + be16(c->element + 3);
	return fits && starts_tls(c) && c->next - c->have == c->call.start;
}

// Reject a connection that is not plain-text Kafka. Its owner, addresses and end are still reported; none of its bytes are
// copied.
static inline void reject(struct conn *conn, struct cursor *c)
{
	conn->rejected = 1;
	drop_held(conn);
	conn->unheld = 0;
	if (ANY_PORT)
		return;
	count(COUNT_REJECTED, 1);
	start_sample(conn, c, SAMPLE_REJECT);
	c->out.api_key = starts_tls(c) ? PROTOCOL_TLS : PROTOCOL_UNKNOWN;
	expect(c, FINISHED, 0);
}

// Reject a connection with urgent data, which Kafka never uses. Urgent data makes the two ends read other bytes than the stream
// contains, so its frames cannot be trusted.
static inline void reject_urgent(void *ctx, struct conn *conn)
{
	conn->rejected = 1;
	drop_held(conn);
	doubt_requests(conn);
	conn->unheld = 0;
	count(LOST_URGENT_DATA, 1);
	if (!ANY_PORT)
		announce(ctx, conn);
	if (!conn->announced) // the notice still contains the OPEN
		return;
	count(COUNT_REJECTED, 1);
	struct sample *sample = notice(conn, SAMPLE_REJECT);
	sample->api_key = PROTOCOL_UNKNOWN;
	send_notice(ctx, conn->peer, sample);
}

// Return 1 if the client has sent no byte yet, not even one that no hook saw.
static inline int nothing_asked(struct conn *conn)
{
	if (conn->side == SIDE_SERVER)
		return !READ(conn->sk, tcp_sock, bytes_received);
	return READ(conn->sk, tcp_sock, write_seq) - conn->tx_base <= 1;
}

// Handle bytes at the cursor that are no frame. At the start of a stream this rejects the connection if `decides`: bytes that may be
// a response whose request was missed do not decide. Later the cursor searches for the start of a frame again.
static inline void not_a_frame(struct conn *conn, struct cursor *c, int decides)
{
	c->next = c->call.end; // no second attempt within this call
	if (c->lock == LOCKED && !conn->is_kafka && decides) {
		reject(conn, c);
		return;
	}
	lost(c, c->lock == LOCKED && conn->is_kafka ? LOST_MALFORMED : LOST_RESYNC);
	seek(c);
	if (ANY_PORT && !conn->is_kafka) { // the side was a guess: try the other one next
		conn->side = SIDE_CLIENT + SIDE_SERVER - conn->side;
		conn->cursor_states[SEND].lock = SEEKING;
		conn->cursor_states[RECEIVE].lock = SEEKING;
		doubt_requests(conn);
		drop_held(conn);
		conn->unheld = 0;
	}
}

// Return 1 if a correlation id fits the first request behind raw SASL tokens. Ids continue from the handshake's, or start at 0
// (Java reserves its highest ids for SASL).
static inline int ends_sasl(struct conn *conn, u32 correlation_id)
{
	return correlation_id < SASL_REQUESTS || correlation_id - conn->last_correlation_id - 1 < SASL_REQUESTS;
}

// Return the length of the client id, the last two bytes of a request's header. ControlledShutdown 0 has none: there they belong
// to the body.
static inline u16 client_id_length(struct cursor *c)
{
	return be32(c->element + 4) == CONTROLLED_SHUTDOWN_0 ? NO_CLIENT_ID : be16(c->element + SHORT_HEAD);
}

static inline int names_client(u16 client_id_bytes)
{
	return client_id_bytes && client_id_bytes != NO_CLIENT_ID;
}

// Return 1 if the client id fits into the frame. If the start of the frame is a guess, a client id is required: otherwise data
// with many zeros or small numbers would look like a request in many places.
static inline int client_id_fits(struct conn *conn, struct cursor *c, u32 size)
{
	u16 bytes = client_id_length(c);
	if (c->lock != LOCKED && !conn->is_kafka && !names_client(bytes))
		return 0;
	return bytes == NO_CLIENT_ID || bytes + REQUEST_HEAD <= size + 4;
}

// Return 1 if a request continues the one before it. Then its correlation id is close and its client id has the same length.
// Random bytes hardly do.
static inline int continues(struct conn *conn, struct cursor *c, u32 correlation_id)
{
	u32 ahead = correlation_id - c->out.correlation_id;
	return c->out.kind == SAMPLE_FRAME && ahead - 1 < CLOSE_BY && conn->client_id_bytes == client_id_length(c);
}

static inline void request_head(struct conn *conn, struct cursor *c)
{
	u32 size = be32(c->element);
	int raw = conn->sasl_raw && c->lock == LOCKED;
	c->frame_end = c->next - c->have + 4 + size;
	if (size < REQUEST_HEAD - 4 || size >= MAX_FRAME_BYTES) {
		if (raw && size < MAX_FRAME_BYTES) {
			skip_request(conn, 1);
			skip_frame(c);
		} else {
			not_a_frame(conn, c, 1);
		}
		return;
	}
	if (c->have < SHORT_HEAD) {
		c->need = REQUEST_HEAD;
		return;
	}
	if (!conn->is_kafka && starts_tls(c)) {
		not_a_frame(conn, c, 1);
		return;
	}
	u32 api_key = be16(c->element + 4), api_version = be16(c->element + 6), correlation_id = be32(c->element + 8);
	struct rule *rule = rule_of(api_key, api_version);
	u32 flags = rule ? rule->flags : 0;
	if (raw) {
		if (!flags || !ends_sasl(conn, correlation_id)) {
			skip_request(conn, 1);
			skip_frame(c);
			return;
		}
		conn->sasl_raw = 0;
	}
	// A version newer than the rules is accepted only where a frame must start. On an unproven connection only ApiVersions
	// may be newer.
	int must_start = c->lock == LOCKED && (conn->is_kafka || api_key == API_VERSIONS);
	int known = flags || (must_start && api_key < NO_API && api_version < 256);
	if (!known && must_start && conn->is_kafka) { // its API key or version does not fit into a sample
		lost(c, LOST_UNKNOWN_VERSION);
		skip_request(conn, 1);
		skip_frame(c);
		return;
	}
	if (!known || !((c->lock == LOCKED && conn->is_kafka) || client_id_fits(conn, c, size))) {
		not_a_frame(conn, c, 1);
		return;
	}
	int found = c->lock == LOCKED && conn->cursor_states[response_direction(conn)].lock == LOCKED;
	if (!found && !request_found(conn, c, api_key, correlation_id))
		return;
	if (!flags)
		lost(c, LOST_UNKNOWN_VERSION);
	// If the side is a guess, two consistent frames prove nothing, because responses with low correlation ids look like
	// Produce requests. Then a response is required.
	c->proves = !ANY_PORT && continues(conn, c, correlation_id);
	conn->client_id_bytes = client_id_length(c);
	if (ANY_PORT && !(WATCHED_SIDES & (1 << conn->side))) { // the side was unknown until now
		conn->rejected = 1;
		return;
	}
	count(COUNT_REQUESTS, 1);
	start_frame(conn, c, size, correlation_id);
	c->out.api_key = api_key;
	c->out.api_version = api_version;
	conn->last_api_key = api_key;
	conn->last_api_version = api_version;
	conn->last_request_bytes = c->out.frame_bytes;
	conn->no_response = 0;
	skip_request(conn, conn->acks_unread); // the Produce before it was cut: it may expect a response
	conn->acks_unread = 0;
	if (api_key == API_SASL_HANDSHAKE && api_version == 0)
		conn->sasl_raw = 1;
	c->copy_left = MAX_CLIENT_ID;
	c->body_left = rule ? rule->request_limit : 0;
	c->flexible = !!(flags & RULE_FLEXIBLE);
	c->at_op = rule ? rule->request_program : 0;
	if (api_key != API_PRODUCE) // the acks of a Produce decide if it expects a response
		call_take_request(conn->sk);
	else
		conn->acks_unread = 1;
	append(c, c->element + SHORT_HEAD, 2, MAX_ELEMENT);
	expect_bulk(c, conn->client_id_bytes == NO_CLIENT_ID ? 0 : conn->client_id_bytes, BODY);
}

// Start the body, behind the client id of a request or the correlation id of a response. Copy at most `limit` bytes of it.
static inline void start_body(struct cursor *c, u32 limit)
{
	c->copy_left = limit;
	c->depth = 0;
	if (c->at_op)
		expect(c, NEXT, 0);
	else
		expect_bulk(c, c->frame_end - c->next, FINISHED);
}

// Return 1 if the last request has this correlation id and is incomplete or ended too early. No response to it can exist then.
static inline int asks(struct conn *conn, u32 correlation_id)
{
	return conn->cursor_states[request_direction(conn)].correlation_id == correlation_id && is_incomplete(conn);
}

// Return 1 if the sides of the two ends may be swapped. If the side is a guess, a response may look like a request: its
// correlation id, which the client chose, is read as API key and version. The next request then looks like the response.
static inline int may_be_backwards(struct conn *conn, u32 correlation_id)
{
	return ANY_PORT && !conn->is_kafka && correlation_id >> 16 < API_KEYS && (correlation_id & 0xffff) < MAX_VERSIONS;
}

static inline void response_head(struct conn *conn, struct cursor *c)
{
	u32 size = be32(c->element);
	c->frame_end = c->next - c->have + 4 + size;
	if (conn->sasl_raw && c->lock == LOCKED && !known_before(conn, conn->asked) && size < MAX_FRAME_BYTES) {
		count_responses(conn, 1);
		skip_frame(c);
		return;
	}
	if (size < 4 || size >= MAX_FRAME_BYTES) {
		not_a_frame(conn, c, nothing_asked(conn));
		return;
	}
	if (c->have < RESPONSE_HEAD) {
		c->need = RESPONSE_HEAD;
		return;
	}
	u32 correlation_id = be32(c->element + 4);
	struct cursor_state *asked = &conn->cursor_states[request_direction(conn)];
	int outcome = call_take_response(conn->sk), matched = outcome == MATCHED;
	struct in_flight *request = &c->request;
	if (outcome == PASSED) {
		if (request->unsure && request->api_key != API_PRODUCE && asked->lock == TENTATIVE)
			asked->lock = SEEKING;
		lost(c, conn->is_kafka && !request->unsure ? LOST_UNANSWERED : LOST_RESYNC);
		c->next -= 4; // read the correlation id again and compare it with the next request in flight
		c->have -= 4;
		return;
	}
	check_chain(conn, correlation_id, matched);
	if (conn->is_kafka ? !matched && c->lock != LOCKED : !matched || asks(conn, correlation_id)) {
		not_a_frame(conn, c, nothing_asked(conn));
		return;
	}
	if (matched && may_be_backwards(conn, correlation_id) && (c->lock != LOCKED || asked->lock != LOCKED)) {
		withhold(c, correlation_id);
		return;
	}
	if (matched && (c->lock != LOCKED || asked->lock != LOCKED))
		response_matched(conn, c);
	else if (!matched && asked->lock == TENTATIVE && !known_before(conn, conn->asked)) // it answers no request of the chain
		asked->lock = SEEKING;
	if (c->lock != LOCKED || request->unsure) {
		withhold(c, correlation_id);
		return;
	}
	count(COUNT_RESPONSES, 1);
	// Two runs of zeros look like a request and its response, so a correlation id of 0 proves Kafka only for a first request.
	conn->is_kafka |= matched && (correlation_id || (conn->from_start && names_client(conn->client_id_bytes)));
	start_frame(conn, c, size, correlation_id);
	c->out.flags |= FLAG_RESPONSE;
	c->out.api_key = matched ? request->api_key : NO_API;
	c->out.api_version = request->api_version;
	if (!matched) {
		lost(c, LOST_UNMATCHED);
		finish(c, 0);
		return;
	}
	c->out.latency_us = (u32)(c->out.ts_ns / 1000) - request->seen_us;
	struct rule *rule = rule_of(request->api_key, request->api_version);
	// A broker that does not support the version of an ApiVersions request answers in version 0 (KIP-511). The error code
	// shows this.
	int unknown_version = request->api_key == API_VERSIONS && (!rule || !rule->flags);
	if (unknown_version)
		rule = rule_of(API_VERSIONS, 0);
	u32 flags = rule ? rule->flags : 0;
	c->flexible = !!(flags & RULE_FLEXIBLE);
	c->at_op = rule ? rule->response_program : 0;
	c->body_left = rule ? rule->response_limit : 0;
	start_body(c, unknown_version ? sizeof(u16) : c->body_left);
}
