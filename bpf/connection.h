// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Follows open connections: the first sight of one, its use, and a change of the process that uses it.
#pragma once
#include "counters.h"
#include "kernel_structs.h"
#include "maps.h"
#include "sample.h"
#include "peer_limit.h"
#include "sock.h"
#include "verifier.h"

static inline struct sample *notice(struct conn *conn, u8 kind)
{
	struct sample *sample = &conn->notice;
	__builtin_memset(sample, 0, sizeof(*sample));
	sample->ts_ns = bpf_ktime_get_ns();
	sample->conn = conn->id;
	sample->kind = kind;
	return sample;
}

// Fill the notice with the connection and its owner, the calling process. An OPEN notice stays there until announce() sends it.
static inline void describe(u64 sk, struct conn *conn, u8 kind)
{
	struct sample *sample = notice(conn, kind);
	struct open_data *open = (struct open_data *)sample->data;
	open->keepalive_s = keepalive_s(sk, &open->cookie); // first: fill_addresses() sets the cookie
	fill_addresses(sk, open);
	if (conn->tgid)
		fill_owner(open);
	open->rx_base = conn->rx_base;
	open->tx_base = conn->tx_base;
	open->handshake_us = handshake_us(sk);
	open->server_side = conn->side == SIDE_SERVER;
	conn->peer = open->server_side ? peer_at(open) : peer_process(conn->tgid);
	open->from_start = conn->from_start;
	sample->size = sizeof(*open);
}

// Send the OPEN notice of the connection to user space, once. If the buffer is full, the next frame or the end of the connection
// repeats the attempt. The function is short, because with a perf buffer the verifier walks it for every sample of a call.
static inline void announce(void *ctx, struct conn *conn)
{
	if (conn->announced)
		return;
	struct open_data *open = (struct open_data *)conn->notice.data;
	open->server_side = conn->side == SIDE_SERVER; // no longer a guess
	conn->announced = send_notice(ctx, conn->peer, &conn->notice);
	count(COUNT_CONNECTIONS, conn->announced);
}

// Set the owner and send or prepare its notice. tgid: of the calling process.
static inline void change_owner(void *ctx, u64 sk, struct conn *conn, u32 tgid)
{
	conn->tgid = tgid;
	describe(sk, conn, conn->announced ? SAMPLE_OWNER : SAMPLE_OPEN);
	if (conn->announced)
		send_notice(ctx, conn->peer, &conn->notice);
}

// Set both cursors to the position before a call that moved the bytes from `start` on.
static inline void position(u64 sk, struct conn *conn, u32 start, u8 direction)
{
	struct cursor_state *send = &conn->cursor_states[SEND], *receive = &conn->cursor_states[RECEIVE];
	send->next = direction == SEND ? start : sequence_end(sk, SEND);
	receive->next = direction == RECEIVE ? start : sequence_end(sk, RECEIVE);
	conn->read_end = receive->next;
	send->lock = send->next - conn->tx_base <= 1 ? LOCKED : SEEKING; // the base of a client end is one before its first byte
	receive->lock = receive->next == conn->rx_base ? LOCKED : SEEKING;
	conn->from_start = send->lock == LOCKED && receive->lock == LOCKED;
}

// Insert a connection and return it, or the entry that another program has inserted meanwhile; 0 if the map is full. tgid: of the
// owner, 0 if that is not the calling process. silent: no byte of it was seen. Other programs find the entry at once. Until it is
// opened, they write only `first_state` and `closing_ns`.
static inline struct conn *open_connection(void *ctx, u64 sk, int side, u32 start, u8 direction, u32 tgid, u8 silent)
{
	u32 zero = 0;
	struct conn *empty = empty_conn.lookup(&zero);
	if (!empty)
		return 0;
	int refused = conns.insert(&sk, empty);
	struct conn *conn = conns.lookup(&sk);
	if (!conn)
		count(LOST_MAP_FULL, 1);
	if (!conn || refused)
		return conn;
	conn->id = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 0xff); // unique, and contains no kernel address
	conn->sk = sk;
	conn->side = side ? side : direction == RECEIVE ? SIDE_SERVER : SIDE_CLIENT; // in Kafka the client sends first
	conn->tgid = tgid;
	conn->silent = silent;
	conn->last_api_key = NO_API;
	conn->rx_base = receive_base(sk);
	conn->tx_base = send_base(sk);
	conn->write_end = conn->sent_end = sequence_end(sk, SEND);
	position(sk, conn, start, direction);
	describe(sk, conn, SAMPLE_OPEN);
	if (!ANY_PORT)
		announce(ctx, conn);
	FORGET;
	conn->opened = 1; // after all other fields: a program on another CPU may use the entry now
	return conn;
}

static inline u64 last_payload(struct conn *conn)
{
	return conn->last_ns[SEND] > conn->last_ns[RECEIVE] ? conn->last_ns[SEND] : conn->last_ns[RECEIVE];
}

static inline void payload_moved(u64 sk, struct conn *conn, u32 start, u32 bytes, u8 direction)
{
	u64 now = bpf_ktime_get_ns(), last = last_payload(conn);
	u64 silence = last && now > last ? now - last : 0; // another CPU may have stored a later time
	int replies = !conn->burst_replied && !conn->burst_response && direction != conn->burst_direction &&
		      conn->burst_bytes <= ALERTS_BYTES && now - conn->burst_ns < REPLY_NS;
	if ((!last || silence >= BURST_NS) && !replies) {
		u8 before = conn->last_ns[RECEIVE] > conn->last_ns[SEND] ? RECEIVE : SEND;
		conn->burst_ns = now;
		conn->pause_ns = silence;
		conn->burst_bytes = 0;
		conn->burst_replied = 0;
		conn->burst_direction = direction;
		// A Kafka broker sends only responses.
		conn->burst_response = last && before != direction && direction == (conn->side == SIDE_SERVER ? SEND : RECEIVE);
	}
	conn->burst_replied |= direction != conn->burst_direction;
	conn->burst_bytes += bytes;
	if (direction == SEND && (s32)(READ(sk, tcp_sock, snd_una) - start) >= 0) // all earlier bytes are acknowledged
		conn->silence_ns = silence;
	if (silence > conn->longest_silence_ns)
		conn->longest_silence_ns = silence;
	if (direction == SEND)
		conn->sent_end = READ(sk, tcp_sock, write_seq);
	conn->last_ns[direction] = now;
}

// Return the connection of a call that moved the bytes from `start` on, and update its owner. Return 0 if the connection cannot be
// followed.
static inline struct conn *connection(void *ctx, u64 sk, int side, u32 start, u32 bytes, u8 direction)
{
	struct conn *conn = conns.lookup(&sk);
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (!conn)
		conn = open_connection(ctx, sk, side, start, direction, tgid, 0);
	if (!conn)
		return 0;
	if (!conn->opened) { // another program opens it, which may set the cursor behind the bytes of this call
		if (!ANY_PORT)
			count(LOST_GAP, 1);
		return 0;
	}
	if (conn->silent) { // it was closed during its first call
		conn->silent = 0;
		position(sk, conn, start, direction);
	}
	payload_moved(sk, conn, start, bytes, direction);
	if (tgid != conn->tgid)
		change_owner(ctx, sk, conn, tgid);
	return conn;
}
