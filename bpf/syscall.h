// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds the buffer for hooks that do not get the message of a call. It is in the arguments of the running system call, which the
// kernel has saved on the task's stack. x86-64.
#pragma once
#include "iov.h"
#include "kernel_structs.h"
#include "maps.h"
#include "sock.h"

enum {
	SYS_READ = 0,
	SYS_WRITE = 1,
	SYS_READV = 19,
	SYS_WRITEV = 20,
	SYS_SENDTO = 44,
	SYS_RECVFROM = 45,
	SYS_SENDMSG = 46,
	SYS_RECVMSG = 47,
	SYS_RECVMMSG = 299,
	SYS_SENDMMSG = 307
};

#define USER_CODE_SEGMENT 0x33 // 32-bit callers have another segment and other system call numbers
#define MMSGHDR_BYTES 64

struct user_msghdr {
	u64 name;
	u64 name_bytes;
	u64 iov;
	u64 iov_count;
};

static inline void message(struct call *call, u64 address)
{
	struct user_msghdr header = {};
	if (!bpf_probe_read_user(&header, sizeof(header), (void *)address))
		vector(call, header.iov, header.iov_count);
}

// Find the message of a sendmmsg or recvmmsg, which run the hook once per message. If the call ends early, its last result is 0
// or less, or short (sends). After that the next call starts at its first message.
static inline void message_of_many(struct call *call, u64 address, u64 count, s32 result)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct mmsg *running = mmsgs.lookup(&thread);
	u64 index = running && running->vector == address && running->index < count ? running->index : 0;
	if (result <= 0 || index + 1 >= count) {
		if (running)
			mmsgs.delete(&thread);
	} else {
		struct mmsg next = { .vector = address, .index = index + 1 };
		mmsgs.update(&thread, &next);
	}
	if (result > 0)
		message(call, address + index * MMSGHDR_BYTES);
}

// Return nonzero if the running system call sends urgent data.
static inline int sent_urgent(u64 registers)
{
	switch (READ(registers, pt_regs, orig_ax)) {
	case SYS_SENDTO:
	case SYS_SENDMMSG:
		return READ(registers, pt_regs, r10) & MSG_OOB;
	case SYS_SENDMSG:
		return READ(registers, pt_regs, dx) & MSG_OOB;
	default:
		return 0;
	}
}

// Fill `call` with the buffer of the running system call. If it has no buffer (sendfile, splice, io_uring), the call stays
// unreadable, and only the length of its bytes is known.
static inline void find_buffer(struct call *call, s32 result)
{
	u64 registers = (u64)bpf_task_pt_regs((void *)bpf_get_current_task_btf());
	if (READ(registers, pt_regs, cs) != USER_CODE_SEGMENT)
		return;
	call->urgent = sent_urgent(registers);
	u64 second = READ(registers, pt_regs, si), third = READ(registers, pt_regs, dx);
	switch (READ(registers, pt_regs, orig_ax)) {
	case SYS_READ:
	case SYS_WRITE:
	case SYS_SENDTO:
	case SYS_RECVFROM:
		one_buffer(call, second, third);
		break;
	case SYS_READV:
	case SYS_WRITEV:
		vector(call, second, third);
		break;
	case SYS_SENDMSG:
	case SYS_RECVMSG:
		message(call, second);
		break;
	case SYS_SENDMMSG:
	case SYS_RECVMMSG:
		message_of_many(call, second, third, result);
		break;
	}
}
