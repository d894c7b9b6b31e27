// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads fields of sockets and tasks.
#pragma once
#include "kernel_structs.h"
#include "maps.h"
#include "sample.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6

#define MSG_OOB 0x1
#define MSG_IGNORED (MSG_OOB | 0x2 | 0x2000) // and MSG_PEEK, MSG_ERRQUEUE: such a receive does not advance the stream
#define MSG_TRUNC 0x20                       // the bytes are dropped: there is no buffer

enum side { SIDE_UNKNOWN, SIDE_CLIENT, SIDE_SERVER };
enum direction { SEND, RECEIVE };

static inline u32 netns_of(u64 net)
{
	return READ(net + OFFSET(net, ns), ns_common, inum);
}

static inline int watched(u64 sk)
{
	u16 family = READ(sk, sock_common, skc_family);
	u16 protocol = READ(sk, sock, sk_protocol);
	return (family == AF_INET || family == AF_INET6) && protocol == IPPROTO_TCP &&
	       (!START->netns || netns_of(READ(sk, sock_common, skc_net)) == START->netns);
}

// Return the local port, also of a closed socket that has lost it in struct sock_common.
static inline u16 local_port(u64 sk)
{
	return bpf_ntohs(READ(sk, inet_sock, inet_sport));
}

static inline u16 peer_port(u64 sk)
{
	return bpf_ntohs((u16)READ(sk, sock_common, skc_portpair));
}

// Return the side of a connection between these ports, or -1 if it is not watched. A configured port belongs to the server side.
// If all ports are watched, the side is unknown before the first bytes. The loader defines PORT_MATCH(port): a chain of
// comparisons, or 1.
static inline int side_of(u16 local, u16 peer)
{
	int side = -1;
	if (ANY_PORT)
		side = SIDE_UNKNOWN;
	else if (PORT_MATCH(local))
		side = SIDE_SERVER;
	else if (PORT_MATCH(peer))
		side = SIDE_CLIENT;
	return side > 0 && !(WATCHED_SIDES & (1 << side)) ? -1 : side;
}

// Return the side of a candidate connection, or -1. A reset removes the local port while data may still be read (tcp_done,
// inet_put_port). Such a socket is a candidate only if its connection is known.
static inline int candidate(u64 sk)
{
	u32 ports = READ(sk, sock_common, skc_portpair);
	u16 local = ports >> 16, peer = bpf_ntohs((u16)ports);
	int side = side_of(local, peer);
	if (side < 0 && !local)
		return conns.lookup(&sk) ? SIDE_SERVER : -1;
	return side >= 0 && watched(sk) ? side : -1;
}

static inline int is_agent(u64 sk)
{
	if (bpf_get_current_pid_tgid() >> 32 != START->agent_tgid)
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
		u32 next = READ(sk, tcp_sock, rcv_nxt);
		base = next - (u32)READ(sk, tcp_sock, bytes_received);
		if (next == READ(sk, tcp_sock, rcv_nxt))
			break;
	}
	return base;
}

static inline u32 send_base(u64 sk)
{
	u32 base = 0;
	for (int i = 0; i < 3; i++) {
		u32 unacked = READ(sk, tcp_sock, snd_una);
		base = unacked - (u32)READ(sk, tcp_sock, bytes_acked);
		if (unacked == READ(sk, tcp_sock, snd_una))
			break;
	}
	return base;
}

// Return the duration of the three-way handshake in microseconds, 0 if unknown. It is the only round trip in srtt_us until sent
// data is acknowledged. A SYN counts as one acknowledged byte.
static inline u32 handshake_us(u64 sk)
{
	u64 acked = READ(sk, tcp_sock, bytes_acked);
	return acked > 1 ? 0 : READ(sk, tcp_sock, srtt_us) >> 3;
}

// Return 1 if the peer's FIN has arrived. A FIN has a sequence number and counts as a received byte. Only SOCK_DONE shows it: a
// reset or the process may also shut the socket down, with data still to be read.
static inline int fin_received(u64 sk)
{
	return READ(sk, sock_common, skc_flags) >> SOCK_DONE & 1;
}

// Return the sequence number behind the last byte that a call moved. copied_seq also counts the peer's FIN once a receive
// consumed it.
static inline u32 sequence_end(u64 sk, u8 direction)
{
	if (direction == SEND)
		return READ(sk, tcp_sock, write_seq);
	u32 end = READ(sk, tcp_sock, copied_seq);
	if (fin_received(sk) && end == READ(sk, tcp_sock, rcv_nxt))
		end--;
	return end;
}

// Return 1 if the peer has sent urgent data (tcp_check_urg). The urgent byte has a sequence number, but a receive does not return
// it with the other bytes, so frames seem to end early. urg_seq is 0 until urgent data arrives, or by chance. By chance means
// that the urgent byte has sequence number 0: then the last receive ended there, and this one starts behind it or is unreadable.
static inline int urgent_received(u64 sk, u32 read_end, struct call *call)
{
	u32 mark = READ(sk, tcp_sock, urg_seq);
	return mark || READ(sk, tcp_sock, urg_data) || (!read_end && (call->start || !call->readable));
}

// Return 1 if the stream contains unacknowledged urgent data. Used for sends whose flags no hook can read (io_uring).
static inline int urgent_sent(u64 sk)
{
	return (s32)(READ(sk, tcp_sock, snd_up) - READ(sk, tcp_sock, snd_una)) > 0;
}

static inline void fill_addresses(u64 sk, struct open_data *open)
{
	open->local_port = local_port(sk);
	open->peer_port = peer_port(sk);
	open->family = READ(sk, sock_common, skc_family);
	if (open->family == AF_INET) {
		bpf_probe_read_kernel(open->local_address, 4, (void *)(sk + OFFSET(sock_common, skc_rcv_saddr)));
		bpf_probe_read_kernel(open->peer_address, 4, (void *)(sk + OFFSET(sock_common, skc_daddr)));
	} else {
		bpf_probe_read_kernel(open->local_address, 16, (void *)(sk + OFFSET(sock_common, skc_v6_rcv_saddr)));
		bpf_probe_read_kernel(open->peer_address, 16, (void *)(sk + OFFSET(sock_common, skc_v6_daddr)));
	}
	open->netns = netns_of(READ(sk, sock_common, skc_net));
	open->cookie = READ(sk, sock_common, skc_cookie);
}

// Return the silence after which the kernel probes the peer, as keepalive_time_when() does, in seconds; 0: never. scratch: replaces
// a variable, because the stack is nearly full.
static inline u16 keepalive_s(u64 sk, u64 *scratch)
{
	bpf_probe_read_kernel(scratch, 8, (void *)(sk + OFFSET(sock_common, skc_flags)));
	if (!(*scratch >> SOCK_KEEPOPEN & 1))
		return 0;
	*scratch = 0;
	bpf_probe_read_kernel(scratch, 4, (void *)(sk + OFFSET(tcp_sock, keepalive_time)));
	if (!*scratch) {
		bpf_probe_read_kernel(scratch, 8, (void *)(sk + OFFSET(sock_common, skc_net)));
		u64 ipv4 = *scratch + OFFSET(net, ipv4);
		*scratch = 0;
		bpf_probe_read_kernel(scratch, 4, (void *)(ipv4 + OFFSET(netns_ipv4, sysctl_tcp_keepalive_time)));
	}
	u32 seconds = (u32)*scratch / START->hz;
	return seconds < 1 ? 1 : seconds > 0xffff ? 0xffff : seconds;
}

#define PF_EXITING 4

// Return 1 if the calling process is exiting.
static inline int exiting(void)
{
	return !!(READ((u64)bpf_get_current_task(), task_struct, flags) & PF_EXITING);
}

// Fill in the calling process, which owns the socket. Its command line is read here, because the process may be gone before user
// space can read it.
static inline void fill_owner(struct open_data *open)
{
	u64 task = (u64)bpf_get_current_task();
	u64 leader = READ(task, task_struct, group_leader);
	u64 mm = READ(task, task_struct, mm);

	open->tgid = bpf_get_current_pid_tgid() >> 32;
	open->uid = bpf_get_current_uid_gid();
	open->start_ns = READ(leader, task_struct, start_boottime);
	bpf_probe_read_kernel(open->comm, sizeof(open->comm), (void *)(leader + OFFSET(task_struct, comm)));
	open->cgroup_id = bpf_get_current_cgroup_id();
#if CGROUP_SUBSYSTEM >= 0 // container engines may use cgroup v1 only: then v2 does not contain the containers
	u64 css_set = READ(task, task_struct, cgroups);
	u64 css = READ_AT(u64, css_set + OFFSET(css_set, subsys) + 8 * CGROUP_SUBSYSTEM);
	u64 cgroup = READ(css, cgroup_subsys_state, cgroup);
	u64 kn = READ(cgroup, cgroup, kn);
	open->cgroup_v1_id = READ(kn, kernfs_node, id);
#endif
	u64 from = mm ? READ(mm, mm_struct, arg_start) : 0;
	u64 size = mm ? READ(mm, mm_struct, arg_end) - from : 0;
	if (size > COMMAND_LINE_BYTES)
		size = COMMAND_LINE_BYTES;
	if (size && !bpf_probe_read_user(open->command_line, (u32)size, (void *)from))
		open->command_line_size = size;
}
