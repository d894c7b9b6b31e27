// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The `tracepoint` backend: raw tracepoints of kernel 6.3 and newer, where neither kprobes nor fentry are needed.
#include "frames.h"
#include "maps.h"
#include "sock.h"
#include "syscall.h"

static inline int called(struct bpf_raw_tracepoint_args *ctx, u8 direction)
{
	u64 sk = ctx->args[0];
	s32 result = ctx->args[1];
	u32 flags = direction == RECEIVE ? ctx->args[2] : 0;
	int side = candidate(sk);
	if (side < 0 || (flags & MSG_IGNORED) || is_agent(sk))
		return 0;
	struct call call = {};
	if (!(flags & MSG_TRUNC))
		find_buffer(&call, result);
	if (result > 0)
		moved(ctx, sk, side, &call, sequence_end(sk, direction), result, direction);
	return 0;
}

int on_sock_send_length(struct bpf_raw_tracepoint_args *ctx)
{
	return called(ctx, SEND);
}

int on_sock_recv_length(struct bpf_raw_tracepoint_args *ctx)
{
	return called(ctx, RECEIVE);
}
