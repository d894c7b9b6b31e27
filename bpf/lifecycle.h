// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Connections: opened (first seen), used by another process, closed; listening sockets; resets without a socket.
#pragma once
#include "segment.h"

#define TCP_ESTABLISHED 1
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define SHUTDOWN_MASK 3

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

// Fills the notice of the connection and its owner, the calling process; an OPEN waits there until it is announced.
static inline void describe(u64 sk, struct conn *conn, u8 kind)
{
	struct record *record = notice(conn, kind);
	struct open_data *open = (struct open_data *)record->data;
	fill_addresses(sk, open);
	if (conn->tgid)
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

// tgid: the owner's, 0 if that is not the calling process.
static inline struct conn *open_connection(void *ctx, u64 sk, int role, u32 start, u8 direction, u32 tgid)
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
	conn->tgid = tgid;
	conn->rx_base = receive_base(sk);
	conn->tx_base = send_base(sk);
	conn->write_end = conn->sent_end = sequence_end(sk, SEND);

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

static inline u64 last_payload(struct conn *conn)
{
	return conn->last_ns[SEND] > conn->last_ns[RECEIVE] ? conn->last_ns[SEND] : conn->last_ns[RECEIVE];
}

static inline void payload_moved(u64 sk, struct conn *conn, u32 start, u8 direction)
{
	u64 now = bpf_ktime_get_ns(), last = last_payload(conn);
	if (direction == SEND && (s32)(READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA) - start) >= 0) // all before it was acknowledged
		conn->silence_ns = last ? now - last : 0;
	if (direction == SEND)
		conn->sent_end = READ(u32, sk, OFFSET_TCP_SOCK_WRITE_SEQ);
	conn->last_ns[direction] = now;
}

// The connection of a call that moved the bytes from `start` on, with its present owner.
static inline struct conn *connection(void *ctx, u64 sk, int role, u32 start, u8 direction)
{
	struct conn *conn = conns.lookup(&sk);
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (!conn)
		conn = open_connection(ctx, sk, role, start, direction, tgid);
	if (!conn)
		return 0;
	payload_moved(sk, conn, start, direction);
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

static inline void send_close(void *ctx, u64 sk, struct conn *conn, int by_owner)
{
	struct record *record = notice(conn, RECORD_CLOSE);
	struct close_data *close = (struct close_data *)record->data;
	u32 write_seq = READ(u32, sk, OFFSET_TCP_SOCK_WRITE_SEQ);
	u64 unsent = write_seq - READ(u32, sk, OFFSET_TCP_SOCK_SND_NXT);
	close->closing_ns = conn->closing_ns;
	close->sent_ns = conn->last_ns[SEND];
	close->received_ns = conn->last_ns[RECEIVE];
	// A reset may come before the send that brought it about has returned; a FIN is one number.
	close->silence_ns = (s32)(write_seq - conn->sent_end) > 1 ? conn->closing_ns - last_payload(conn) : conn->silence_ns;
	close->sent_bytes = READ(u64, sk, OFFSET_TCP_SOCK_BYTES_SENT) - READ(u64, sk, OFFSET_TCP_SOCK_BYTES_RETRANS) +
			    (by_owner ? unsent : 0);
	close->received_bytes = READ(u64, sk, OFFSET_TCP_SOCK_BYTES_RECEIVED) - fin_received(sk);
	close->unacked_bytes = write_seq - READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA);
	close->retransmits = READ(u32, sk, OFFSET_TCP_SOCK_TOTAL_RETRANS);
	close->retransmits_unanswered = READ(u8, sk, OFFSET_INET_CONNECTION_SOCK_ICSK_RETRANSMITS);
	close->srtt_us = READ(u32, sk, OFFSET_TCP_SOCK_SRTT_US) >> 3;
	close->user_timeout_ms = READ(u32, sk, OFFSET_INET_CONNECTION_SOCK_ICSK_USER_TIMEOUT);
	close->keepalive = READ(u64, sk, OFFSET_SOCK_COMMON_SKC_FLAGS) >> SOCK_KEEPOPEN & 1;
	close->in_flight = conn->tail - conn->head + conn->overflowed;
	close->error = READ(u32, sk, OFFSET_SOCK_SK_ERR); // later the caller may have read it, or a close of its own have set one
	close->owner_exiting = by_owner && exiting();
	close->first_state = conn->first_state;
	close->last_api_key = conn->last_api_key;
	close->last_api_version = conn->last_api_version;
	close->no_response = conn->no_response;
	record->size = sizeof(*close);
	send_record(ctx, record);
}

// A connection that moved no byte since it is watched. Its owner is known if it is the one who closes it.
static inline struct conn *late_connection(void *ctx, u64 sk, int by_owner)
{
	int role = ANY_PORT ? -1 : role_of(local_port(sk), peer_port(sk));
	if (role < 0 || !watched(sk) || own.lookup(&sk))
		return 0;
	return open_connection(ctx, sk, role, sequence_end(sk, SEND), SEND, by_owner ? bpf_get_current_pid_tgid() >> 32 : 0);
}

// Answered with a reset was a segment that belongs to no socket. An attempt to connect is refused so every day: it ends nothing.
static inline void reset_sent(void *ctx, u64 skb)
{
	if (!skb) // a socket resets its own connection
		return;
	struct record record = { .ts_ns = bpf_ktime_get_ns(), .kind = RECORD_RESET };
	struct open_data *open = (struct open_data *)record.data;
	if (segment(skb, open) & TCP_SYN || role_of(open->local_port, open->peer_port) < 0 || (NETNS && open->netns != NETNS))
		return;
	record.size = sizeof(*open);
	send_record(ctx, &record);
}

// A socket of a watched port listens, or does no longer.
static inline void listening(void *ctx, u64 sk, int closed)
{
	u16 port = local_port(sk);
	if (ANY_PORT || !(PORT_MATCH(port)) || !watched(sk))
		return;
	struct record record = { .ts_ns = bpf_ktime_get_ns(), .kind = RECORD_LISTEN, .flags = closed ? FLAG_CLOSED : 0 };
	fill_addresses(sk, (struct open_data *)record.data);
	record.size = sizeof(struct open_data);
	send_record(ctx, &record);
}

// The owner closes the socket in tcp_close(), which shuts it down both ways before its state changes; a reset or a time-out does
// so afterwards.
static inline void state_changed(void *ctx, u64 sk, int from, int to)
{
	if (from == TCP_LISTEN || to == TCP_LISTEN) {
		listening(ctx, sk, from == TCP_LISTEN);
		return;
	}
	if (from != TCP_ESTABLISHED && to != TCP_LAST_ACK && to != TCP_CLOSE)
		return;
	int by_owner = READ(u8, sk, OFFSET_SOCK_SK_SHUTDOWN) == SHUTDOWN_MASK;
	struct conn *conn = conns.lookup(&sk);
	if (!conn && from == TCP_ESTABLISHED)
		conn = late_connection(ctx, sk, by_owner);
	if (!conn || conn->closed)
		return;
	if (from == TCP_ESTABLISHED) {
		conn->first_state = to;
		conn->closing_ns = bpf_ktime_get_ns();
	}
	if (!by_owner && to != TCP_CLOSE)
		return;
	if (by_owner && !conn->tgid) {
		conn->tgid = bpf_get_current_pid_tgid() >> 32;
		describe(sk, conn, RECORD_OWNER);
		send_record(ctx, &conn->notice);
	}
	conn->closed = 1;
	conn->write_end = sequence_end(sk, SEND); // a disconnect moves it
	if (conn->announced)
		send_close(ctx, sk, conn, by_owner);
}

static inline void destroyed(void *ctx, u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	if (!conn) {
		own.delete(&sk);
		return;
	}
	if (conn->announced) {
		if (!conn->rejected && sent_unseen(conn)) // now that a call in which the connection was reset has returned, too
			count(LOST_GAP, 1);
		send_unfinished(ctx, conn, &conn->cursors[SEND]);
		send_unfinished(ctx, conn, &conn->cursors[RECEIVE]);
		send_record(ctx, notice(conn, RECORD_GONE));
	}
	conns.delete(&sk);
}

// on_NAME is attached to the raw tracepoint NAME, by every backend: what begins and ends a connection.
int on_inet_sock_set_state(struct bpf_raw_tracepoint_args *ctx)
{
	state_changed(ctx, ctx->args[0], ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_destroy_sock(struct bpf_raw_tracepoint_args *ctx)
{
	destroyed(ctx, ctx->args[0]);
	return 0;
}

// For a segment of a connection that is gone: there is no socket (not traced before 6.10), only what waits out its time, or only
// the listening one of its port.
int on_tcp_send_reset(struct bpf_raw_tracepoint_args *ctx)
{
	u64 sk = ctx->args[0];
	u8 state = sk ? READ(u8, sk, OFFSET_SOCK_COMMON_SKC_STATE) : TCP_CLOSE;
	if (state == TCP_CLOSE || state == TCP_TIME_WAIT || state == TCP_LISTEN)
		reset_sent(ctx, ctx->args[1]);
	return 0;
}
