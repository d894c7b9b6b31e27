// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The `tracepoint` backend: raw tracepoints of kernel 6.3 and newer, where neither kprobes nor fentry are needed.
#include "syscall.h"
#include "frames.h"

#define MSG_IGNORED (0x2 | 0x2000) // MSG_PEEK, MSG_ERRQUEUE: nothing of the stream was moved
#define MSG_TRUNC 0x20             // the bytes were dropped: there is no buffer

static inline int moved(struct bpf_raw_tracepoint_args *ctx, u8 direction)
{
	u64 sk = ctx->args[0];
	s32 result = ctx->args[1];
	u32 flags = direction == RECEIVE ? ctx->args[2] : 0;
	int role = candidate(sk);
	if (role < 0 || (flags & MSG_IGNORED) || bpf_get_current_pid_tgid() >> 32 == AGENT_TGID)
		return 0;

	struct call call = {};
	if (!(flags & MSG_TRUNC))
		find_buffer(&call, result);
	if (result <= 0)
		return 0;
	struct conn *conn = connection(sk, role, result, direction);
	if (!conn || conn->rejected)
		return 0;
	struct cursor *c = &conn->cursors[direction & 1];
	c->call = call;
	if (begin(c, direction, sequence_end(sk, direction), result))
		continuations.call(ctx, direction);
	return 0;
}

static inline int follow_frames(struct bpf_raw_tracepoint_args *ctx, u8 direction)
{
	u64 sk = ctx->args[0];
	struct conn *conn = conns.lookup(&sk);
	if (!conn)
		return 0;
	struct cursor *c = &conn->cursors[direction & 1];
	for (int i = 0; i < STEPS; i++)
		if (!step(sk, conn, c, direction))
			return 0;
	continuations.call(ctx, direction);
	out_of_steps(c);
	return 0;
}

int follow_send(struct bpf_raw_tracepoint_args *ctx)
{
	return follow_frames(ctx, SEND);
}

int follow_receive(struct bpf_raw_tracepoint_args *ctx)
{
	return follow_frames(ctx, RECEIVE);
}

// on_NAME is attached to the raw tracepoint NAME, by the loader and only when the maps are filled.
int on_sock_send_length(struct bpf_raw_tracepoint_args *ctx)
{
	return moved(ctx, SEND);
}

int on_sock_recv_length(struct bpf_raw_tracepoint_args *ctx)
{
	return moved(ctx, RECEIVE);
}

int on_inet_sock_set_state(struct bpf_raw_tracepoint_args *ctx)
{
	state_changed(ctx->args[0], ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_destroy_sock(struct bpf_raw_tracepoint_args *ctx)
{
	close_connection(ctx->args[0]);
	return 0;
}
