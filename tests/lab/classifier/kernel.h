// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// As much of the kernel and of BCC as the cursor needs, for its sources to run in user space as they are: one socket, tables of one
// entry or few, memory that is read by copying it.
#pragma once
#include <linux/types.h>

// The members of the kernel's structs that are read, in one struct: every OFFSET_ is a place in it.
struct test_socket {
	u32 portpair;
	u16 sport;
	u16 family;
	u16 protocol;
	u32 rcv_nxt;
	u32 copied_seq;
	u32 write_seq;
	u32 snd_una;
	u64 bytes_received;
	u64 bytes_acked;
	u64 zero;
	u8 nothing[64];
};

#define AT(member) __builtin_offsetof(struct test_socket, member)
#define OFFSET_sock_common_skc_portpair AT(portpair)
#define OFFSET_inet_sock_inet_sport AT(sport)
#define OFFSET_sock_common_skc_family AT(family)
#define OFFSET_sock_sk_protocol AT(protocol)
#define OFFSET_tcp_sock_rcv_nxt AT(rcv_nxt)
#define OFFSET_tcp_sock_copied_seq AT(copied_seq)
#define OFFSET_tcp_sock_write_seq AT(write_seq)
#define OFFSET_tcp_sock_snd_una AT(snd_una)
#define OFFSET_tcp_sock_bytes_received AT(bytes_received)
#define OFFSET_tcp_sock_bytes_acked AT(bytes_acked)
#define OFFSET_tcp_sock_snd_nxt AT(write_seq)
#define OFFSET_tcp_sock_snd_up AT(snd_una)
#define OFFSET_tcp_sock_urg_seq AT(zero)
#define OFFSET_tcp_sock_urg_data AT(zero)
#define OFFSET_sock_common_skc_flags AT(zero)
#define OFFSET_sock_common_skc_state AT(zero)
#define OFFSET_sock_common_skc_cookie AT(zero)
#define OFFSET_sock_sk_shutdown AT(zero)
#define OFFSET_inet_connection_sock_icsk_retransmits AT(zero)
#define OFFSET_inet_connection_sock_icsk_user_timeout AT(zero)
#define OFFSET_sock_common_skc_rcv_saddr AT(nothing)
#define OFFSET_sock_common_skc_daddr AT(nothing)
#define OFFSET_sock_common_skc_v6_rcv_saddr AT(nothing)
#define OFFSET_sock_common_skc_v6_daddr AT(nothing)
#define OFFSET_sock_common_skc_net AT(zero)
#define OFFSET_sock_sk_err AT(zero)
#define OFFSET_tcp_sock_bytes_sent AT(zero)
#define OFFSET_tcp_sock_bytes_retrans AT(zero)
#define OFFSET_tcp_sock_total_retrans AT(zero)
#define OFFSET_tcp_sock_srtt_us AT(zero)
#define OFFSET_tcp_sock_keepalive_time AT(zero)
#define OFFSET_net_ns 0
#define OFFSET_net_ipv4 0
#define OFFSET_netns_ipv4_sysctl_tcp_keepalive_time AT(zero)
#define OFFSET_ns_common_inum 0
#define OFFSET_task_struct_group_leader 0
#define OFFSET_task_struct_mm 0
#define OFFSET_task_struct_start_boottime 0
#define OFFSET_task_struct_comm 0
#define OFFSET_task_struct_flags 0
#define OFFSET_mm_struct_arg_start 0
#define OFFSET_mm_struct_arg_end 0
#define OFFSET_sk_buff_head 0
#define OFFSET_sk_buff_network_header 0
#define OFFSET_sk_buff_transport_header 0
#define OFFSET_sk_buff_dev 0
#define OFFSET_net_device_nd_net 0
#define SOCK_DEAD 0
#define SOCK_DONE 1
#define SOCK_KEEPOPEN 3
#define CGROUP_SUBSYSTEM (-1)

#define WATCHED_SIDES 6
#define PORT_MATCH(port) ((port) == KAFKA_PORT)
#define KAFKA_PORT 9092
#define START (&(struct start){ .agent_tgid = 1, .hz = 1000 })
#define PERF_BUFFER 0
#define RING_PAGES 0
#define MAX_CONNECTIONS 1
#define MAX_UNFINISHED 3
#define MAX_HELD 2
#define CONNECTIONS_FLAGS 0
#define CALL_RUN_SEND run_send
#define CALL_RUN_RECEIVE run_receive
#define CALL_HOP_SEND hop_send
#define CALL_HOP_RECEIVE hop_receive
#define CALL_TAKE_REQUEST take_request
#define CALL_TAKE_RESPONSE take_response
#define CALL_IS_URGENT is_urgent
#define CALL_SHARE_FRAME share_frame
#define CALL_SHARE_NOTICE share_notice
#define BPF_RB_NO_WAKEUP 0
#define BPF_RB_FORCE_WAKEUP 0
#define BPF_RB_AVAIL_DATA 0
#define RING 0
#define RING_QUERY waiting
#define BPF_RB_CONS_POS 2

// The ring is never half full.
static u64 waiting(void *ring, u64 what)
{
	return 0;
}

struct bpf_raw_tracepoint_args {
	u64 args[3];
};

static int read(void *to, u64 size, const void *from)
{
	if ((u64)from < 4096) {
		__builtin_memset(to, 0, size);
		return -1;
	}
	__builtin_memcpy(to, from, size);
	return 0;
}

#define bpf_probe_read_kernel read
#define bpf_probe_read_user read
#define READ_IOVEC read

static u64 now_ns;
#define bpf_ktime_get_ns() (now_ns += 1000)
#define bpf_get_smp_processor_id() 0
#define bpf_get_current_pid_tgid() (2ull << 32 | 2)
#define bpf_get_current_uid_gid() 0
#define bpf_get_current_cgroup_id() 0
#define bpf_get_current_task() 0
#define bpf_ntohs __builtin_bswap16
#define bpf_htonl __builtin_bswap32
#define bpf_ntohl __builtin_bswap32

// If set, another program inserts the entry just before the next insert of this one.
static int insert_elsewhere_first;

#define TABLE(key_type, value_type, name, capacity)                                                                              \
	static struct {                                                                                                          \
		key_type key;                                                                                                    \
		value_type value;                                                                                                \
		int used;                                                                                                        \
	} name##_entries[capacity];                                                                                              \
	static value_type *name##_lookup(key_type *key)                                                                          \
	{                                                                                                                        \
		for (int at = 0; at < (capacity); at++)                                                                          \
			if (name##_entries[at].used && !__builtin_memcmp(key, &name##_entries[at].key, sizeof(*key)))            \
				return &name##_entries[at].value;                                                                \
		return 0;                                                                                                        \
	}                                                                                                                        \
	static int name##_delete(key_type *key)                                                                                  \
	{                                                                                                                        \
		for (int at = 0; at < (capacity); at++)                                                                          \
			name##_entries[at].used &= !!__builtin_memcmp(key, &name##_entries[at].key, sizeof(*key));               \
		return 0;                                                                                                        \
	}                                                                                                                        \
	static int name##_update(key_type *key, value_type *value)                                                               \
	{                                                                                                                        \
		int at = 0;                                                                                                      \
		name##_delete(key);                                                                                              \
		while (at < (capacity)-1 && name##_entries[at].used)                                                             \
			at++;                                                                                                    \
		name##_entries[at].key = *key;                                                                                   \
		name##_entries[at].value = *value;                                                                               \
		name##_entries[at].used = 1;                                                                                     \
		return 0;                                                                                                        \
	}                                                                                                                        \
	static int name##_insert(key_type *key, value_type *value)                                                               \
	{                                                                                                                        \
		int inserted = insert_elsewhere_first && name##_update(key, value) == 0;                                         \
		insert_elsewhere_first = 0;                                                                                      \
		return inserted || name##_lookup(key) ? -1 : name##_update(key, value);                                          \
	}                                                                                                                        \
	static const struct {                                                                                                    \
		value_type *(*lookup)(key_type *);                                                                               \
		int (*insert)(key_type *, value_type *);                                                                         \
		int (*update)(key_type *, value_type *);                                                                         \
		int (*delete)(key_type *);                                                                                       \
	} name = { name##_lookup, name##_insert, name##_update, name##_delete }

#define ARRAY_TABLE(value_type, name, entries)                                                                                   \
	static value_type name##_values[entries];                                                                                \
	static value_type *name##_lookup(u32 *at)                                                                                \
	{                                                                                                                        \
		return *at < (entries) ? &name##_values[*at] : 0;                                                                \
	}                                                                                                                        \
	static const struct {                                                                                                    \
		value_type *(*lookup)(u32 *);                                                                                    \
	} name = { name##_lookup }

#define BPF_TABLE(kind, key_type, value_type, name, entries) TABLE(key_type, value_type, name, 1)
#define BPF_F_TABLE(kind, key_type, value_type, name, entries, flags) TABLE(key_type, value_type, name, entries)
#define BPF_HASH(name, key_type, value_type, entries) TABLE(key_type, value_type, name, 1)
#define BPF_ARRAY(name, value_type, entries) ARRAY_TABLE(value_type, name, entries)
#define BPF_PERCPU_ARRAY(name, value_type, entries) ARRAY_TABLE(value_type, name, entries)
#define BPF_RINGBUF_OUTPUT(name, pages)                                                                                          \
	static int taken(void *sample, u64 size, u64 flags);                                                                     \
	static const struct {                                                                                                    \
		int (*ringbuf_output)(void *, u64, u64);                                                                         \
	} name = { taken }
