// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads fields of sockets and tasks. Every OFFSET_ comes from the running kernel's BTF (capture/btf.py), so no kernel header is
// needed.
#pragma once
#include "maps.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6

#define READ(type, base, offset)                                                                                                 \
	({                                                                                                                       \
		type value_ = 0;                                                                                                 \
		bpf_probe_read_kernel(&value_, sizeof(value_), (void *)((base) + (offset)));                                     \
		value_;                                                                                                          \
	})

#define MSG_OOB 0x1
#define MSG_IGNORED (MSG_OOB | 0x2 | 0x2000) // and MSG_PEEK, MSG_ERRQUEUE: such a receive does not advance the stream
#define MSG_TRUNC 0x20                       // the bytes are dropped: there is no buffer

enum role { ROLE_UNKNOWN, ROLE_CLIENT, ROLE_SERVER };
enum direction { SEND, RECEIVE };

static inline u32 netns_of(u64 net)
{
	return READ(u32, net, OFFSET_NET_NS + OFFSET_NS_COMMON_INUM);
}

static inline int watched(u64 sk)
{
	u16 family = READ(u16, sk, OFFSET_SOCK_COMMON_SKC_FAMILY);
	u16 protocol = READ(u16, sk, OFFSET_SOCK_SK_PROTOCOL);
	return (family == AF_INET || family == AF_INET6) && protocol == IPPROTO_TCP &&
	       (!NETNS || netns_of(READ(u64, sk, OFFSET_SOCK_COMMON_SKC_NET)) == NETNS);
}

// Return the local port, also of a closed socket that has lost it in struct sock_common.
static inline u16 local_port(u64 sk)
{
	return bpf_ntohs(READ(u16, sk, OFFSET_INET_SOCK_INET_SPORT));
}

static inline u16 peer_port(u64 sk)
{
	return bpf_ntohs((u16)READ(u32, sk, OFFSET_SOCK_COMMON_SKC_PORTPAIR));
}

// Return the role of a connection between these ports, or -1 if it is not watched. A configured port belongs to the server side.
// If all ports are watched, the role is unknown before the first bytes. The loader defines PORT_MATCH(port): a chain of
// comparisons, or 1.
static inline int role_of(u16 local, u16 peer)
{
	int role = -1;
	if (ANY_PORT)
		role = ROLE_UNKNOWN;
	else if (PORT_MATCH(local))
		role = ROLE_SERVER;
	else if (PORT_MATCH(peer))
		role = ROLE_CLIENT;
	return role > 0 && !(WATCHED_ROLES & (1 << role)) ? -1 : role;
}

// Return the role of a candidate connection, or -1. A reset removes the local port while data may still be read (tcp_done,
// inet_put_port). Such a socket is a candidate only if its connection is known.
static inline int candidate(u64 sk)
{
	u32 ports = READ(u32, sk, OFFSET_SOCK_COMMON_SKC_PORTPAIR);
	u16 local = ports >> 16, peer = bpf_ntohs((u16)ports);
	int role = role_of(local, peer);
	if (role < 0 && !local)
		return conns.lookup(&sk) ? ROLE_SERVER : -1;
	return role >= 0 && watched(sk) ? role : -1;
}

static inline int is_agent(u64 sk)
{
	if (bpf_get_current_pid_tgid() >> 32 != AGENT_TGID)
		return 0;
	u8 yes = 1;
	agent_socks.update(&sk, &yes);
	return 1;
}

// Return the initial sequence number, computed from counters for connections of any age. A softirq may change both values between
// the two reads, so they are read until they are unchanged, at most three times.
static inline u32 receive_base(u64 sk)
{
	u32 base = 0;
	for (int i = 0; i < 3; i++) {
		u32 next = READ(u32, sk, OFFSET_TCP_SOCK_RCV_NXT);
		base = next - (u32)READ(u64, sk, OFFSET_TCP_SOCK_BYTES_RECEIVED);
		if (next == READ(u32, sk, OFFSET_TCP_SOCK_RCV_NXT))
			break;
	}
	return base;
}

static inline u32 send_base(u64 sk)
{
	u32 base = 0;
	for (int i = 0; i < 3; i++) {
		u32 unacked = READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA);
		base = unacked - (u32)READ(u64, sk, OFFSET_TCP_SOCK_BYTES_ACKED);
		if (unacked == READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA))
			break;
	}
	return base;
}

// Return the duration of the three-way handshake in microseconds, 0 if unknown. It is the only round trip in srtt_us until sent
// data is acknowledged. A SYN counts as one acknowledged byte.
static inline u32 handshake_us(u64 sk)
{
	u64 acked = READ(u64, sk, OFFSET_TCP_SOCK_BYTES_ACKED);
	return acked > 1 ? 0 : READ(u32, sk, OFFSET_TCP_SOCK_SRTT_US) >> 3;
}

// Return 1 if the peer's FIN has arrived. A FIN has a sequence number and counts as a received byte. Only SOCK_DONE shows it: a
// reset or the process may also shut the socket down, with data still to be read.
static inline int fin_received(u64 sk)
{
	return READ(u64, sk, OFFSET_SOCK_COMMON_SKC_FLAGS) >> SOCK_DONE & 1;
}

// Return the sequence number behind the last byte that a call moved. copied_seq also counts the peer's FIN once a receive
// consumed it.
static inline u32 sequence_end(u64 sk, u8 direction)
{
	if (direction == SEND)
		return READ(u32, sk, OFFSET_TCP_SOCK_WRITE_SEQ);
	u32 end = READ(u32, sk, OFFSET_TCP_SOCK_COPIED_SEQ);
	if (fin_received(sk) && end == READ(u32, sk, OFFSET_TCP_SOCK_RCV_NXT))
		end--;
	return end;
}

// Return 1 if the peer has sent urgent data (tcp_check_urg). The urgent byte has a sequence number, but a receive does not return
// it with the other bytes, so frames seem to end early. urg_seq is 0 until urgent data arrives, or by chance. By chance means
// that the urgent byte has sequence number 0: then the last receive ended there, and this one starts behind it or is unreadable.
static inline int urgent_received(u64 sk, u32 read_end, struct call *call)
{
	u32 mark = READ(u32, sk, OFFSET_TCP_SOCK_URG_SEQ);
	return mark || READ(u16, sk, OFFSET_TCP_SOCK_URG_DATA) || (!read_end && (call->start || !call->readable));
}

// Return 1 if the stream contains unacknowledged urgent data. Used for sends whose flags no hook can read (io_uring).
static inline int urgent_sent(u64 sk)
{
	return (s32)(READ(u32, sk, OFFSET_TCP_SOCK_SND_UP) - READ(u32, sk, OFFSET_TCP_SOCK_SND_UNA)) > 0;
}

static inline void fill_addresses(u64 sk, struct open_data *open)
{
	open->local_port = local_port(sk);
	open->peer_port = peer_port(sk);
	open->family = READ(u16, sk, OFFSET_SOCK_COMMON_SKC_FAMILY);
	if (open->family == AF_INET) {
		bpf_probe_read_kernel(open->local_address, 4, (void *)(sk + OFFSET_SOCK_COMMON_SKC_RCV_SADDR));
		bpf_probe_read_kernel(open->peer_address, 4, (void *)(sk + OFFSET_SOCK_COMMON_SKC_DADDR));
	} else {
		bpf_probe_read_kernel(open->local_address, 16, (void *)(sk + OFFSET_SOCK_COMMON_SKC_V6_RCV_SADDR));
		bpf_probe_read_kernel(open->peer_address, 16, (void *)(sk + OFFSET_SOCK_COMMON_SKC_V6_DADDR));
	}
	open->netns = netns_of(READ(u64, sk, OFFSET_SOCK_COMMON_SKC_NET));
	open->cookie = READ(u64, sk, OFFSET_SOCK_COMMON_SKC_COOKIE);
}

#define PF_EXITING 4

// Return 1 if the calling process is exiting.
static inline int exiting(void)
{
	return !!(READ(u32, (u64)bpf_get_current_task(), OFFSET_TASK_STRUCT_FLAGS) & PF_EXITING);
}

// Fill in the calling process, which owns the socket. Its command line is read here, because the process may be gone before user
// space can read it.
static inline void fill_owner(struct open_data *open)
{
	u64 task = (u64)bpf_get_current_task();
	u64 leader = READ(u64, task, OFFSET_TASK_STRUCT_GROUP_LEADER);
	u64 mm = READ(u64, task, OFFSET_TASK_STRUCT_MM);

	open->tgid = bpf_get_current_pid_tgid() >> 32;
	open->uid = bpf_get_current_uid_gid();
	open->start_ns = READ(u64, leader, OFFSET_TASK_STRUCT_START_BOOTTIME);
	bpf_probe_read_kernel(open->comm, sizeof(open->comm), (void *)(leader + OFFSET_TASK_STRUCT_COMM));
	open->cgroup_id = bpf_get_current_cgroup_id();
#if CGROUP_SUBSYSTEM >= 0 // container engines may use cgroup v1 only: then v2 does not contain the containers
	u64 css_set = READ(u64, task, OFFSET_TASK_STRUCT_CGROUPS);
	u64 css = READ(u64, css_set, OFFSET_CSS_SET_SUBSYS + 8 * CGROUP_SUBSYSTEM);
	u64 cgroup = READ(u64, css, OFFSET_CGROUP_SUBSYS_STATE_CGROUP);
	u64 kn = READ(u64, cgroup, OFFSET_CGROUP_KN);
	open->cgroup_v1_id = READ(u64, kn, OFFSET_KERNFS_NODE_ID);
#endif
	u64 from = mm ? READ(u64, mm, OFFSET_MM_STRUCT_ARG_START) : 0;
	u64 size = mm ? READ(u64, mm, OFFSET_MM_STRUCT_ARG_END) - from : 0;
	if (size > COMMAND_LINE_BYTES)
		size = COMMAND_LINE_BYTES;
	if (size && !bpf_probe_read_user(open->command_line, (u32)size, (void *)from))
		open->command_line_size = size;
}
