// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The `kprobe` backend, for every kernel that the agent supports. x86-64.
//
// A receive may block for hours, and a kretprobe has few instances: if that many readers block, the returns of all others are
// missed. So received bytes are processed in tcp_rcv_space_adjust, which tcp_recvmsg calls right after it has copied each
// segment. Sends rarely block. A missed return of a send appears as a gap in the sequence numbers.
#include "frames.h"
#include "kernel_structs.h"
#include "maps.h"
#include "message.h"
#include "sock.h"

#define ARGUMENT_1 OFFSET(pt_regs, di)
#define ARGUMENT_2 OFFSET(pt_regs, si)
#define ARGUMENT_3 OFFSET(pt_regs, dx)
#define ARGUMENT_4 OFFSET(pt_regs, cx)
#define ARGUMENT_5 OFFSET(pt_regs, r8)
#define REGISTER(ctx, offset) (*(u64 *)((void *)(ctx) + (offset)))

struct sending {
	u64 sk;
	u64 message;
	u64 running;
};

struct receiving {
	u64 sk;
	u64 message;
	u64 left;     // free bytes in the message's buffer
	u32 sequence; // copied_seq at the time of `left`
	u32 flags;
};

// thread → its last call on a candidate. The entry programs insert and replace; LRU, because a thread may end at any time.
BPF_TABLE("lru_hash", u64, struct sending, sends, 16384);
BPF_TABLE("lru_hash", u64, struct receiving, receives, 16384);

static inline u64 buffer_left(u64 message)
{
	return READ(message + OFFSET(msghdr, msg_iter), iov_iter, count);
}

int on_tcp_sendmsg(void *ctx)
{
	u64 sk = REGISTER(ctx, ARGUMENT_1), thread = bpf_get_current_pid_tgid();
	if (candidate(sk) < 0 || is_agent(sk))
		return 0;
	struct sending call = { .sk = sk, .message = REGISTER(ctx, ARGUMENT_2), .running = 1 };
	sends.update(&thread, &call);
	return 0;
}

int on_tcp_sendmsg_return(void *ctx)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct sending *sending = sends.lookup(&thread);
	if (!sending || !sending->running)
		return 0;
	sending->running = 0;
	u64 sk = sending->sk;
	s32 result = REGISTER(ctx, OFFSET(pt_regs, ax));
	int side = candidate(sk);
	if (side < 0 || result <= 0)
		return 0;
	struct call call = { .urgent = sent_urgent(sending->message) };
	find_buffer(&call, sending->message, result);
	moved(ctx, sk, side, &call, sequence_end(sk, SEND), result, SEND);
	return 0;
}

int on_tcp_recvmsg(void *ctx)
{
	u64 sk = REGISTER(ctx, ARGUMENT_1), message = REGISTER(ctx, ARGUMENT_2), thread = bpf_get_current_pid_tgid();
	if (candidate(sk) < 0 || is_agent(sk))
		return 0;
	struct receiving call = { .sk = sk,
				  .message = message,
				  .left = buffer_left(message),
				  .sequence = READ(sk, tcp_sock, copied_seq),
				  .flags = REGISTER(ctx, RECEIVE_FLAGS) };
	receives.update(&thread, &call);
	return 0;
}

int on_tcp_rcv_space_adjust(void *ctx)
{
	u64 sk = REGISTER(ctx, ARGUMENT_1), thread = bpf_get_current_pid_tgid();
	int side = candidate(sk);
	struct receiving *receiving = side < 0 ? 0 : receives.lookup(&thread);
	if (!receiving || receiving->sk != sk || (receiving->flags & MSG_IGNORED))
		return 0;
	u32 end = READ(sk, tcp_sock, copied_seq);
	s32 result = end - receiving->sequence;
	u64 left = buffer_left(receiving->message);
	if (result <= 0)
		return 0;
	// The message belongs to this call only if it received as many bytes as the socket delivered. Otherwise another thread
	// received.
	struct call call = {};
	if (receiving->left - left == result)
		find_buffer(&call, receiving->message, result);
	receiving->sequence = end;
	receiving->left = left;
	moved(ctx, sk, side, &call, end, result, RECEIVE);
	return 0;
}
