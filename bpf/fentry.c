// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The `fentry` backend: fexit programs on tcp_sendmsg and tcp_recvmsg. `args` contains the arguments and, behind them, the
// result. The number of arguments differs between kernels, so the loader takes ARGUMENTS_ and ARGUMENT_ from BTF.
#include "frames.h"
#include "kernel_structs.h"
#include "maps.h"
#include "message.h"
#include "sock.h"

static inline int called(u64 *args, u32 flags, s32 result, u8 direction)
{
	u64 sk = READ_AT(u64, args); // a number: the verifier takes args[0] for a pointer, which no function here accepts
	int side = candidate(sk);
	if (side < 0 || result <= 0 || (flags & MSG_IGNORED) || is_agent(sk))
		return 0;
	struct call call = { .urgent = direction == SEND && sent_urgent(args[1]) };
	if (!(flags & MSG_TRUNC))
		find_buffer(&call, args[1], result);
	moved(args, sk, side, &call, sequence_end(sk, direction), result, direction);
	return 0;
}

int on_tcp_sendmsg(u64 *args)
{
	return called(args, 0, args[ARGUMENTS_TCP_SENDMSG], SEND);
}

int on_tcp_recvmsg(u64 *args)
{
	return called(args, args[ARGUMENT_TCP_RECVMSG_FLAGS], args[ARGUMENTS_TCP_RECVMSG], RECEIVE);
}
