// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Walks the caller's buffer, one segment at a time of the bytes that a call sent or received. The backend fills struct call.
// capture/compiler.py defines READ_IOVEC, the helper that reads the vector.
#pragma once
#include "maps.h"

#define MAX_SEGMENTS 1024 // UIO_MAXIOV

struct user_iovec {
	u64 base;
	u64 bytes;
};

// Move to the next segment. Return 0 if there is none: then the buffer does not match the call.
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
	call->iov_left = count > MAX_SEGMENTS ? MAX_SEGMENTS : count;
	call->readable = next_segment(call);
}
