// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds the buffer for hooks that get the message of a call. The hooks run after bytes moved, so the message's iterator is behind
// them (include/linux/uio.h).
#pragma once
#include "iov.h"
#include "kernel_structs.h"
#include "maps.h"
#include "sock.h"

// Find the segment in which the bytes begin: go back from the iterator's position by the number of moved bytes.
static inline void segments(struct call *call, u64 iov, s64 back)
{
	for (int i = 0; i < MAX_SEGMENTS && back > 0; i++) {
		iov -= sizeof(struct user_iovec);
		back -= READ_FIELD(iov, user_iovec, bytes);
	}
	vector(call, iov, MAX_SEGMENTS);
	call->buffer -= back;
	call->segment_bytes += back;
	call->readable &= back <= 0;
}

static inline int sent_urgent(u64 message)
{
	return READ(message, msghdr, msg_flags) & MSG_OOB;
}

// Fill `call` with the buffer of the `result` bytes. If there is no user-space buffer (sendfile, splice), the call stays
// unreadable, and only the length of its bytes is known.
static inline void find_buffer(struct call *call, u64 message, s32 result)
{
	u64 iter = message + OFFSET(msghdr, msg_iter);
	u8 type = READ(iter, iov_iter, iter_type) & ITER_TYPE_MASK;
	u64 offset = READ(iter, iov_iter, iov_offset);
	if (type == ITER_IOVEC)
		segments(call, READ(iter, iov_iter, __iov), result - offset);
#ifdef ITER_UBUF
	else if (type == ITER_UBUF)
		one_buffer(call, READ(iter, iov_iter, ubuf) + offset - result, result);
#endif
}
