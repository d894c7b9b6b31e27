// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The caller's buffer: one segment at a time of what a call sent or received. Who fills struct call is the backend's affair, and
// whose memory holds its vector: READ_IOVEC is the helper that reads it.
#pragma once
#include "sock.h"

struct user_iovec {
	u64 base;
	u64 bytes;
};

// Moves to the next segment. 0 when there is none, which means that the buffer was not what it seemed.
static inline int next_segment(struct call *call)
{
	struct user_iovec iov = {};
	if (!call->iov_left || READ_IOVEC(&iov, sizeof(iov), (void *)call->iov))
		return 0;
	call->iov += sizeof(iov);
	call->iov_left--;
	call->segment += call->segment_bytes;
	call->segment_bytes = iov.bytes;
	call->buffer = iov.base;
	return 1;
}

static inline void one_buffer(struct call *call, u64 buffer, u32 bytes)
{
	call->buffer = buffer;
	call->segment_bytes = bytes;
	call->readable = 1;
}

static inline void vector(struct call *call, u64 iov, u64 count)
{
	call->iov = iov;
	call->iov_left = count > 1024 ? 1024 : count; // UIO_MAXIOV
	call->readable = next_segment(call);
}
