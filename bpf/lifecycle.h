// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Handles closes of connections, and events without a connection: listening sockets, resets without a socket.
#pragma once
#include "connection.h"
#include "counters.h"
#include "in_flight.h"
#include "kernel_structs.h"
#include "maps.h"
#include "sample.h"
#include "segment.h"
#include "peer_limit.h"
#include "sock.h"

#define TCP_ESTABLISHED 1
#define TCP_FIN_WAIT1 4
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define SHUTDOWN_MASK 3

// Send the copied part of a frame that will never be complete.
static inline void send_cut(void *ctx, struct conn *conn, struct cursor *c)
{
	if (!conn->is_kafka || !conn->announced || c->withheld) {
		conn->unheld++;
		return;
	}
	c->out.flags = (c->out.flags & ~FLAG_MORE) | FLAG_CUT;
	send_frame(ctx, conn, &c->out);
}

static inline void send_unfinished(void *ctx, struct conn *conn, u8 direction)
{
	u64 key = conn->sk + direction;
	struct cursor_state *state = &conn->cursor_states[direction];
	struct cursor *c = state->inside ? unfinished.lookup(&key) : 0;
	if (c)
		send_cut(ctx, conn, c);
	else if (state->have && state->lock == LOCKED && !conn->rejected)
		count(LOST_HEADER_INCOMPLETE, 1);
}

// Return 1 if no hook saw the last bytes sent. Only the end of the connection shows this. A FIN counts as a byte.
static inline int sent_unseen(struct conn *conn)
{
	struct cursor_state *state = &conn->cursor_states[SEND];
	return state->lock == LOCKED && (s32)(conn->write_end - 1 - state->next) > 0;
}

static inline void send_close(void *ctx, u64 sk, struct conn *conn, int by_owner)
{
	struct sample *sample = notice(conn, SAMPLE_CLOSE);
	struct close_data *close = (struct close_data *)sample->data;
	u32 write_seq = READ(sk, tcp_sock, write_seq);
	u64 unsent = write_seq - READ(sk, tcp_sock, snd_nxt);
	close->closing_ns = conn->closing_ns;
	close->sent_ns = conn->last_ns[SEND];
	close->received_ns = conn->last_ns[RECEIVE];
	// A reset may arrive before the send that caused it has returned. A FIN has one sequence number.
	u64 last = last_payload(conn), in_call = (s32)(write_seq - conn->sent_end) > 1;
	u64 until_now = last && last < conn->closing_ns ? conn->closing_ns - last : 0;
	close->silence_ns = in_call ? until_now : conn->silence_ns;
	close->burst_ns = conn->burst_ns;
	close->pause_ns = conn->pause_ns;
	close->burst_bytes = conn->burst_bytes;
	close->burst_direction = conn->burst_direction;
	close->burst_response = conn->burst_response;
	close->sent_bytes = READ(sk, tcp_sock, bytes_sent) - READ(sk, tcp_sock, bytes_retrans) + (by_owner ? unsent : 0);
	close->received_bytes = READ(sk, tcp_sock, bytes_received) - fin_received(sk);
	close->unacked_bytes = write_seq - READ(sk, tcp_sock, snd_una);
	close->retransmits = READ(sk, tcp_sock, total_retrans);
	close->retransmits_unanswered = READ(sk, inet_connection_sock, icsk_retransmits);
	close->srtt_us = READ(sk, tcp_sock, srtt_us) >> 3;
	close->user_timeout_ms = READ(sk, inet_connection_sock, icsk_user_timeout);
	close->keepalive = READ(sk, sock_common, skc_flags) >> SOCK_KEEPOPEN & 1;
	// Bytes that looked like a request while the position was lost may be none, or a request that expects no response.
	close->in_flight = known_before(conn, conn->chaining ? conn->chain : conn->asked);
	close->error = READ(sk, sock, sk_err); // later the process may have read it, or its own close may have set one
	close->owner_exiting = by_owner && exiting();
	close->first_state = conn->first_state;
	close->last_api_key = conn->is_kafka ? conn->last_api_key : NO_API;
	close->last_request_bytes = conn->is_kafka ? conn->last_request_bytes : 0;
	close->last_api_version = conn->is_kafka ? conn->last_api_version : 0;
	close->no_response = conn->is_kafka && conn->no_response;
	sample->size = sizeof(*close);
	send_notice(ctx, conn->peer, sample);
}

// Insert a connection at its end that moved no byte while watched. Its owner is known only if the owner ends it.
static inline struct conn *late_connection(void *ctx, u64 sk, int owner_calls)
{
	int side = ANY_PORT ? -1 : side_of(local_port(sk), peer_port(sk));
	if (side < 0 || !watched(sk) || agent_socks.lookup(&sk))
		return 0;
	u32 tgid = owner_calls ? bpf_get_current_pid_tgid() >> 32 : 0;
	return open_connection(ctx, sk, side, sequence_end(sk, SEND), SEND, tgid, 1);
}

// Report a reset that answers a segment without a socket. Refused attempts to connect (SYN) are common and end no connection:
// they are not reported.
static inline void reset_sent(void *ctx, u64 skb)
{
	if (!skb) // without a segment: a socket resets its own connection
		return;
	struct sample sample = { .ts_ns = bpf_ktime_get_ns(), .kind = SAMPLE_RESET };
	struct open_data *open = (struct open_data *)sample.data;
	if (segment(skb, open) & TCP_SYN || side_of(open->local_port, open->peer_port) < 0 ||
	    (START->netns && open->netns != START->netns))
		return;
	sample.size = sizeof(*open);
	send_notice(ctx, peer_at(open), &sample);
}

// Report that a socket of a watched port listens, or was closed. The end of a process closes all its sockets, which is not
// reported.
static inline void listening(void *ctx, u64 sk, int closed)
{
	u16 port = local_port(sk);
	if (ANY_PORT || !(PORT_MATCH(port)) || !watched(sk) || (closed && exiting()))
		return;
	struct sample sample = { .ts_ns = bpf_ktime_get_ns(), .kind = SAMPLE_LISTEN, .flags = closed ? FLAG_CLOSED : 0 };
	struct open_data *open = (struct open_data *)sample.data;
	fill_addresses(sk, open);
	open->tgid = bpf_get_current_pid_tgid() >> 32;
	sample.size = sizeof(*open);
	send_notice(ctx, peer_process(open->tgid), &sample);
}

static inline void close_connection(void *ctx, u64 sk, struct conn *conn, int by_owner)
{
	conn->closed = 1;
	conn->write_end = sequence_end(sk, SEND); // a disconnect changes it
	if (!ANY_PORT)
		announce(ctx, conn);
	if (conn->announced)
		send_close(ctx, sk, conn, by_owner);
}

static inline void drop_unfinished(struct conn *conn, u8 direction)
{
	u64 key = conn->sk + direction;
	unfinished.delete(&key); // a call that was running when the socket ended may have inserted it
}

static inline void drop_held(struct conn *conn)
{
	u64 sk = conn->sk;
	if (conn->holding)
		held.delete(&sk);
	conn->holding = 0;
}

// Report the end of the connection and delete its entries. No event of the socket at this address can follow.
static inline void forget(void *ctx, u64 sk)
{
	struct conn *conn = conns.lookup(&sk);
	if (!conn) {
		agent_socks.delete(&sk);
		return;
	}
	if (!conn->opened) // another program fills the entry: if it were deleted, that program might write into another connection's
		return;
	if (!conn->closed)
		close_connection(ctx, sk, conn, 0);
	if (conn->announced) {
		if (!conn->rejected && sent_unseen(conn)) // a call during which the connection was reset has returned by now
			count(LOST_GAP, 1);
		send_unfinished(ctx, conn, SEND);
		send_unfinished(ctx, conn, RECEIVE);
		if (!conn->rejected)
			count(LOST_BEFORE_PROOF, conn->holding + conn->unheld);
		send_notice(ctx, conn->peer, notice(conn, SAMPLE_GONE));
	}
	drop_unfinished(conn, SEND);
	drop_unfinished(conn, RECEIVE);
	drop_held(conn);
	conns.delete(&sk);
}

// Handle a change of a socket's TCP state. If the owner closes the socket, tcp_close() shuts it down in both directions before
// the state changes. A reset or a timeout does so afterwards. Segments that the peer sends after the owner's shutdown() are
// processed in the context of any process.
static inline void state_changed(void *ctx, u64 sk, int from, int to)
{
	// A change from TCP_LISTEN to a state other than TCP_CLOSE is that of an accepted socket, which begins as a copy of the
	// listening one.
	if (to == TCP_LISTEN || (from == TCP_LISTEN && to == TCP_CLOSE)) {
		listening(ctx, sk, to == TCP_CLOSE);
		return;
	}
	if (to == TCP_ESTABLISHED) // an entry of this address belongs to an earlier socket whose close was missed
		forget(ctx, sk);
	if (from != TCP_ESTABLISHED && to != TCP_LAST_ACK && to != TCP_CLOSE)
		return;
	int was_open = from == TCP_ESTABLISHED || from == TCP_CLOSE_WAIT;
	int by_owner = was_open && READ(sk, sock, sk_shutdown) == SHUTDOWN_MASK;
	int owner_calls = by_owner || to == TCP_FIN_WAIT1 || to == TCP_LAST_ACK;
	struct conn *conn = conns.lookup(&sk);
	if (!conn && was_open) // the peer may have closed before the agent was attached
		conn = late_connection(ctx, sk, owner_calls);
	if (!conn)
		return;
	if (!conn->first_state) {
		conn->first_state = from == TCP_ESTABLISHED ? to : from;
		conn->closing_ns = bpf_ktime_get_ns();
	}
	if (!conn->opened) // a later state or forget() reports the close
		return;
	if (owner_calls && !conn->tgid)
		change_owner(ctx, sk, conn, bpf_get_current_pid_tgid() >> 32);
	if (!conn->closed && (by_owner || to == TCP_CLOSE))
		close_connection(ctx, sk, conn, by_owner);
	if (to == TCP_CLOSE && READ(sk, sock_common, skc_flags) >> SOCK_DEAD & 1)
		forget(ctx, sk);
}

// Every backend attaches on_NAME to the raw tracepoint NAME. These are the hooks of opens and closes.
// The kernel skips a program that already runs on the same CPU, for example if an interrupt ends one socket while a process
// closes another. So both of the first two programs delete the entries of an orphaned socket.
int on_inet_sock_set_state(struct bpf_raw_tracepoint_args *ctx)
{
	state_changed(ctx, ctx->args[0], ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_destroy_sock(struct bpf_raw_tracepoint_args *ctx)
{
	forget(ctx, ctx->args[0]);
	return 0;
}

// Handle a reset that answers a segment of a closed connection. For such a segment the kernel finds no socket (not traced before
// 6.10), only one in TIME_WAIT, or only the listening socket of the port.
int on_tcp_send_reset(struct bpf_raw_tracepoint_args *ctx)
{
	u64 sk = ctx->args[0];
	u8 state = sk ? READ(sk, sock_common, skc_state) : TCP_CLOSE;
	if (state == TCP_CLOSE || state == TCP_TIME_WAIT || state == TCP_LISTEN)
		reset_sent(ctx, ctx->args[1]);
	return 0;
}
