// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For hooks with the message at hand, when the call has moved bytes: its iterator stands behind them (include/linux/uio.h).
#pragma once
#define READ_IOVEC bpf_probe_read_kernel // the kernel's copy of the caller's vector
#include "iov.h"

#define MAX_SEGMENTS 1024 // UIO_MAXIOV

// The segment in which the bytes begin: from the iterator's place back by what was moved.
static inline void segments(struct call *call, u64 iov, s64 back)
{
	for (int i = 0; i < MAX_SEGMENTS && back > 0; i++) {
		iov -= sizeof(struct user_iovec);
		back -= READ(u64, iov, 8);
	}
	vector(call, iov, MAX_SEGMENTS);
	call->buffer -= back;
	call->segment_bytes += back;
	call->readable &= back <= 0;
}

static inline int sent_urgent(u64 message)
{
	return READ(u32, message, OFFSET_MSGHDR_MSG_FLAGS) & MSG_OOB;
}

// Fills `call` with the buffer of the `result` bytes. What is no buffer of a program (sendfile, splice) stays unreadable: its
// bytes count by length.
static inline void find_buffer(struct call *call, u64 message, s32 result)
{
	u64 iter = message + OFFSET_MSGHDR_MSG_ITER;
	u8 type = READ(u8, iter, OFFSET_IOV_ITER_TYPE) & ITER_TYPE_MASK;
	u64 offset = READ(u64, iter, OFFSET_IOV_ITER_IOV_OFFSET);
	if (type == ITER_IOVEC)
		segments(call, READ(u64, iter, OFFSET_IOV_ITER_IOV), result - offset);
#ifdef ITER_UBUF
	else if (type == ITER_UBUF)
		one_buffer(call, READ(u64, iter, OFFSET_IOV_ITER_UBUF) + offset - result, result);
#endif
}
