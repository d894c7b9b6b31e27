// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The frame cursor in user space: conversations pass by it in pieces, and it decides whether it takes them for Kafka.
#include "kernel.h"
#include "frames.h"
#include "protocols.h"

enum { LISTENING = KAFKA_PORT, CLIENT_PORT = 40000 };

static struct test_socket sock;
static u64 opened, frames;
static struct sample kept[4096]; // what left since the last connection began
static u32 kept_samples;

static int taken(void *data, u64 size, u64 flags)
{
	struct sample *sample = data;
	if (kept_samples < sizeof(kept) / sizeof(kept[0]))
		kept[kept_samples++] = *sample;
	opened += sample->kind == SAMPLE_OPEN;
	frames += sample->kind == SAMPLE_FRAME;
	return 0;
}

void set_rules(u32 at, const struct rule *rule)
{
	rules_values[at] = *rule;
}

void set_copy_programs(u32 at, const u16 *op)
{
	copy_programs_values[at] = *op;
}

// A new connection, watched at one of its ends; `seen` bytes went each way before it was.
void new_connection(int server_side, u32 seen)
{
	u64 address = (u64)&sock;
	conns.delete(&address);
	u32 sent = 0x7fffff00 + below(512), received = 0x7fffff00 + below(512); // wrap around, now and then
	__builtin_memset(&sock, 0, sizeof(sock));
	kept_samples = 0;
	sock.sport = bpf_ntohs(server_side ? LISTENING : CLIENT_PORT);
	sock.portpair = server_side ? LISTENING << 16 | bpf_ntohs(CLIENT_PORT) : CLIENT_PORT << 16 | bpf_ntohs(LISTENING);
	sock.family = AF_INET;
	sock.protocol = IPPROTO_TCP;
	sock.bytes_received = seen;
	sock.bytes_acked = seen + !server_side; // the SYN of the end that connected
	sock.rcv_nxt = sock.copied_seq = received + seen;
	sock.write_seq = sock.snd_una = sent + seen;
	if (!server_side)
		sock.write_seq++, sock.snd_una++;
}

// A call of this end that moved bytes.
void move(int direction, const void *bytes, u32 size)
{
	int side = candidate((u64)&sock);
	if (side < 0)
		__builtin_trap();
	struct call call = {};
	one_buffer(&call, (u64)bytes, size);
	if (direction == SEND) {
		sock.write_seq += size;
		sock.snd_una += size;
		sock.bytes_acked += size;
	} else {
		sock.copied_seq += size;
	}
	moved(0, (u64)&sock, side, &call, sequence_end((u64)&sock, direction), size, direction);
}

// Bytes come before they are read.
void arrive(u32 size)
{
	sock.rcv_nxt += size;
	sock.bytes_received += size;
}

// How many samples have left since the connection began; `at`: where they are put.
u32 samples_left(const struct sample **at)
{
	*at = kept;
	return kept_samples;
}

u64 counted(u32 which)
{
	return counters_values[which];
}

int is_kafka(void)
{
	u64 address = (u64)&sock;
	struct conn *conn = conns.lookup(&address);
	return conn && conn->is_kafka;
}

// Insert the entry of the connection, as a program that has not filled it yet. meanwhile: only once another program inserts it, too.
void begin_elsewhere(int meanwhile)
{
	u64 address = (u64)&sock;
	struct conn empty = {};
	if (meanwhile)
		insert_elsewhere_first = 1;
	else
		conns.insert(&address, &empty);
}

// Return 1 if no program has written to the entry of the connection, except for its first state after ESTABLISHED.
int is_untouched(void)
{
	u64 address = (u64)&sock;
	struct conn *conn = conns.lookup(&address), expected = {};
	if (!conn)
		return 0;
	expected.first_state = conn->first_state;
	expected.closing_ns = conn->closing_ns;
	return !__builtin_memcmp(conn, &expected, sizeof(expected));
}

// The TCP state of the connection changes.
void change_state(int from, int to)
{
	state_changed(0, (u64)&sock, from, to);
}

// Return the state that ESTABLISHED changed to, 0 if there is no entry or it has none.
u32 first_state(void)
{
	u64 address = (u64)&sock;
	struct conn *conn = conns.lookup(&address);
	return conn ? conn->first_state : 0;
}

// Advance the numbers of the connection as if so many requests had been answered, each by a matched answer or by none.
void pass_numbers(u32 requests, int matched)
{
	u64 address = (u64)&sock;
	struct conn *conn = conns.lookup(&address);
	conn->asked += requests;
	conn->completed += requests;
	if (matched)
		conn->proven = conn->doubted_by_responses = conn->completed;
}

// Return the number of the next request.
u32 next_number(void)
{
	u64 address = (u64)&sock;
	return conns.lookup(&address)->asked;
}

static void run_turn(struct turn *turn, int server_side)
{
	int direction = turn->by_client == server_side ? RECEIVE : SEND;
	if (direction == RECEIVE)
		arrive(turn->size);
	// Whole, as most programs send, by size and body, as some read, or in pieces.
	u32 way = below(4), most = way < 2 ? turn->size : way == 2 ? 4 : between(1, 40);
	for (u32 at = 0, size; at < turn->size; at += size) {
		size = turn->size - at < most ? turn->size - at : most;
		move(direction, turn->bytes + at, size);
		if (way == 2)
			most = turn->size;
	}
}

// Conversations of one protocol, each on a connection of its own; returns how many of them were taken for Kafka. One in `late_one_in` is
// older than the capture; 0: none.
u64 taken_for_kafka(u32 protocol, u64 seed, u64 count, u32 late_one_in)
{
	u64 found = 0;
	state = seed * 0x9e3779b97f4a7c15ull + protocol + 1;
	for (u64 n = 0; n < count; n++) {
		turn_count = 0;
		PROTOCOLS[protocol]();
		int server_side = below(2), late = late_one_in && below(late_one_in) == 0;
		new_connection(server_side, late ? between(1, 1 << 20) : 0);
		opened = frames = 0;
		for (int turn = late ? below(turn_count / 2 + 1) : 0; turn < turn_count; turn++)
			run_turn(&turns[turn], server_side);
		found += is_kafka() || frames || (ANY_PORT && opened);
	}
	return found;
}
