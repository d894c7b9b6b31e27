// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Declares every member of the kernel's structs that the programs read, and reads it. Only the names and types here are the
// kernel's: the running kernel's BTF contains the offsets, which capture/compiler.py defines as OFFSET_<struct>_<member> for each
// member here. So a member that is not declared here, or that the kernel does not have, does not compile. Addresses are numbers.
#pragma once
#include <linux/types.h>

#define OFFSET(structure, member) OFFSET_##structure##_##member

#define READ_AT(type, address)                                                                                                   \
	({                                                                                                                       \
		type value_ = 0;                                                                                                 \
		bpf_probe_read_kernel(&value_, sizeof(value_), (void *)(address));                                               \
		value_;                                                                                                          \
	})

// Read a member of the struct at an address.
#define READ(address, structure, member) READ_AT(typeof(((struct structure *)0)->member), (address) + OFFSET(structure, member))

// The same for a struct whose layout is the same in every kernel. It is a header on the wire, or a struct of user space.
#define FIELD(address, structure, member) ((address) + __builtin_offsetof(struct structure, member))
#define READ_FIELD(address, structure, member) READ_AT(typeof(((struct structure *)0)->member), FIELD(address, structure, member))

struct sock_common {
	u32 skc_portpair;
	u16 skc_family;
	u32 skc_rcv_saddr;
	u32 skc_daddr;
	u8 skc_v6_rcv_saddr[16];
	u8 skc_v6_daddr[16];
	u64 skc_net;
	u64 skc_flags;
	u8 skc_state;
	u64 skc_cookie;
};

struct sock {
	u16 sk_protocol;
	u32 sk_err;
	u8 sk_shutdown;
};

struct inet_sock {
	u16 inet_sport;
};

struct inet_connection_sock {
	u8 icsk_retransmits;
	u32 icsk_user_timeout;
};

struct tcp_sock {
	u32 rcv_nxt;
	u64 bytes_received;
	u32 snd_una;
	u32 snd_nxt;
	u32 snd_up;
	u16 urg_data;
	u32 urg_seq;
	u64 bytes_acked;
	u32 write_seq;
	u32 copied_seq;
	u64 bytes_sent;
	u64 bytes_retrans;
	u32 total_retrans;
	u32 srtt_us;
	u32 keepalive_time;
};

struct sk_buff {
	u64 head;
	u16 network_header;
	u16 transport_header;
	u64 dev;
};

struct net_device {
	u64 nd_net;
};

struct ns_common {
	u32 inum;
};

struct netns_ipv4 {
	u32 sysctl_tcp_keepalive_time;
};

struct net {
	struct ns_common ns;
	struct netns_ipv4 ipv4;
};

struct task_struct {
	u32 flags;
	u64 group_leader;
	u64 mm;
	u64 start_boottime;
	char comm[16];
	u64 cgroups;
};

struct mm_struct {
	u64 arg_start;
	u64 arg_end;
};

struct css_set {
	u64 subsys[1];
};

struct cgroup_subsys_state {
	u64 cgroup;
};

struct cgroup {
	u64 kn;
};

struct kernfs_node {
	u64 id;
};

struct pt_regs {
	u64 orig_ax;
	u64 di;
	u64 si;
	u64 dx;
	u64 cx;
	u64 r8;
	u64 r10;
	u64 ax;
	u16 cs;
};

// In kernels before 5.14 `iter_type` is called `type`, in kernels before 6.4 `__iov` is `iov`, and kernels before 6.0 have no
// `ubuf`.
struct iov_iter {
	u8 iter_type;
	u64 iov_offset;
	u64 count;
	u64 __iov;
	u64 ubuf;
};

struct msghdr {
	struct iov_iter msg_iter;
	u32 msg_flags;
};
