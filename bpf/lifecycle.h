// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Connections: opened (first seen), used by another process, closed.
#pragma once
#include "sock.h"

#define TCP_ESTABLISHED 1
#define TCP_CLOSE 7

static inline struct record *notice(struct conn *conn, u8 kind)
{
	struct record *record = &conn->notice;
	__builtin_memset(record, 0, sizeof(*record));
	record->ts_ns = bpf_ktime_get_ns();
	record->conn = conn->id;
	record->kind = kind;
	return record;
}

static inline void send_record(void *ctx, struct record *record)
{
	if (emit(ctx, record))
		count(LOST_RING_FULL, 1);
}

// Fills the notice of the connection and its owner; an OPEN waits there until it is announced.
static inline void describe(u64 sk, struct conn *conn, u8 kind)
{
	struct record *record = notice(conn, kind);
	struct open_data *open = (struct open_data *)record->data;
	fill_addresses(sk, open);
	fill_owner(open);
	open->rx_base = conn->rx_base;
	open->tx_base = conn->tx_base;
	open->accepting = conn->role == ROLE_ACCEPTING;
	open->from_start = conn->from_start;
	record->size = sizeof(*open);
}

// Tells user space of the connection, once. Short, for with a perf buffer the verifier walks it for every record of a call.
static inline void announce(void *ctx, struct conn *conn)
{
	if (conn->announced)
		return;
	conn->announced = 1;
	count(COUNT_CONNECTIONS, 1);
	struct open_data *open = (struct open_data *)conn->notice.data;
	open->accepting = conn->role == ROLE_ACCEPTING; // no longer a guess
	send_record(ctx, &conn->notice);
}

static inline struct conn *open_connection(void *ctx, u64 sk, int role, u32 start, u8 direction)
{
	u32 zero = 0;
	struct conn *blank_conn = blank.lookup(&zero);
	if (!blank_conn)
		return 0;
	conns.update(&sk, blank_conn);
	struct conn *conn = conns.lookup(&sk);
	if (!conn) {
		count(LOST_MAP_FULL, 1);
		return 0;
	}
	conn->id = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 0xff); // unique, and tells nothing of the kernel
	conn->sk = sk;
	conn->role = role ? role : direction == RECEIVE ? ROLE_ACCEPTING : ROLE_CONNECTING; // in Kafka the client speaks first
	conn->tgid = bpf_get_current_pid_tgid() >> 32;
	conn->rx_base = receive_base(sk);
	conn->tx_base = send_base(sk);
	conn->write_end = sequence_end(sk, SEND);

	struct cursor *send = &conn->cursors[SEND], *receive = &conn->cursors[RECEIVE];
	send->next = direction == SEND ? start : sequence_end(sk, SEND);
	receive->next = direction == RECEIVE ? start : sequence_end(sk, RECEIVE);
	send->lock =
		send->next - conn->tx_base <= 1 ? LOCKED : SEEKING; // the connecting side's base is one before its first byte
	receive->lock = receive->next == conn->rx_base ? LOCKED : SEEKING;
	conn->from_start = send->lock == LOCKED && receive->lock == LOCKED;
	describe(sk, conn, RECORD_OPEN);
	if (!ANY_PORT)
		announce(ctx, conn);
	return conn;
}

// The connection of a call that moved the bytes from `start` on, with its present owner.
static inline struct conn *connection(void *ctx, u64 sk, int role, u32 start, u8 direction)
{
	struct conn *conn = conns.lookup(&sk);
	if (!conn)
		conn = open_connection(ctx, sk, role, start, direction);
	if (!conn)
		return 0;
	conn->last_ns = bpf_ktime_get_ns();
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (tgid != conn->tgid) {
		conn->tgid = tgid;
		describe(sk, conn, conn->announced ? RECORD_OWNER : RECORD_OPEN);
		if (conn->announced)
			send_record(ctx, &conn->notice);
	}
	return conn;
}

// Sends off what was copied of a frame that will never be whole.
static inline void send_unfinished(void *ctx, struct conn *conn, struct cursor *c)
{
	if (c->state != CURSOR_AT_HEAD) {
		c->out.flags = (c->out.flags & ~FLAG_MORE) | FLAG_CUT;
		send_record(ctx, &c->out);
	} else if (c->have && !conn->rejected) {
		count(LOST_HEADER_INCOMPLETE, 1);
	}
}

// What was sent last without a hook's knowing shows at the end only; a FIN counts as a byte.
static inline int sent_unseen(struct conn *conn)
{
	struct cursor *c = &conn->cursors[SEND];
	u32 known = c->state == CURSOR_AT_HEAD ? c->next : c->frame_end;
	return c->lock != SEEKING && (s32)(conn->write_end - 1 - known) > 0;
}

static inline void state_changed(u64 sk, int from, int to)
{
	if (from != TCP_ESTABLISHED && to != TCP_CLOSE)
		return;
	struct conn *conn = conns.lookup(&sk);
	if (!conn)
		return;
	if (from == TCP_ESTABLISHED)
		conn->first_state = to;
	if (to != TCP_CLOSE)
		return;
	conn->error = READ(u32, sk, OFFSET_SOCK_SK_ERR); // later the caller may have read it, or a close of its own have set one
	conn->write_end = sequence_end(sk, SEND);        // and a disconnect have moved it
}

static inline void close_connection(void *ctx, u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	if (!conn)
		return;
	if (conn->announced) {
		if (!conn->rejected && sent_unseen(conn)) // now that a call in which the connection was reset has returned, too
			count(LOST_GAP, 1);
		send_unfinished(ctx, conn, &conn->cursors[SEND]);
		send_unfinished(ctx, conn, &conn->cursors[RECEIVE]);
		struct record *record = notice(conn, RECORD_CLOSE);
		struct close_data *close = (struct close_data *)record->data;
		close->idle_ns = record->ts_ns - conn->last_ns;
		close->sent_bytes = READ(u64, sk, OFFSET_TCP_SOCK_BYTES_SENT) - READ(u64, sk, OFFSET_TCP_SOCK_BYTES_RETRANS);
		close->received_bytes = READ(u64, sk, OFFSET_TCP_SOCK_BYTES_RECEIVED) - fin_received(sk);
		close->unacked_bytes = READ(u32, sk, OFFSET_TCP_SOCK_WRITE_SEQ) - READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA);
		close->retransmits = READ(u32, sk, OFFSET_TCP_SOCK_TOTAL_RETRANS);
		close->srtt_us = READ(u32, sk, OFFSET_TCP_SOCK_SRTT_US) >> 3;
		close->in_flight = conn->tail - conn->head + conn->overflowed;
		close->error = conn->error;
		close->first_state = conn->first_state;
		close->last_api_key = conn->last_api_key;
		close->last_api_version = conn->last_api_version;
		record->size = sizeof(*close);
		send_record(ctx, record);
	}
	conns.delete(&sk);
}

// on_NAME is attached to the raw tracepoint NAME, by every backend: what begins and ends a connection.
int on_inet_sock_set_state(struct bpf_raw_tracepoint_args *ctx)
{
	state_changed(ctx->args[0], ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_destroy_sock(struct bpf_raw_tracepoint_args *ctx)
{
	close_connection(ctx, ctx->args[0]);
	return 0;
}
