// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The cursor's vocabulary: what it can want next, how that is said, and how bytes join the sample being filled.
#pragma once
#include "lifecycle.h"

#define MAX_FRAME_BYTES (1 << 30)
#define MAX_APPENDED 31 // an element that is copied, or a record set's summary; one less than a power of two

// What the cursor collects next. NUMBER marks lengths and counts: fixed-size, or a varint in flexible versions.
#define NUMBER 0x80
enum state {
	HEAD,     // size and header
	BULK,     // bytes copied as they are
	FIELDS,   // of fixed size
	ACKS,     // the same, of a Produce request
	NULLABLE, // whether a struct is null
	BATCH,    // peeked at, never copied
	BODY,     // nothing: the body begins,
	NEXT,     // the walk goes on,
	FINISHED, // the sample leaves
	STRING = NUMBER,
	HIDDEN,
	ARRAY,
	RECORD_SET,
	ITEMS,
	TAGS, // from here on numbers are not lengths plus one
	TAG,
	TAG_BYTES,
	TAG_SKIPPED,
};

enum { API_PRODUCE = 0, API_SASL_HANDSHAKE = 17, API_VERSIONS = 18, API_KEYS = RULES >> 5 };
#define UNSUPPORTED_VERSION 35 // error code
#define INSIDE 0xffffffff      // no tag: the cursor is in the fields of a tag of the version, or behind them

// Of a step or hop: the call has nothing more for the cursor, it goes on, or something else is to be done first.
enum outcome { DONE, MORE, SUBMIT };

static inline int is_request(struct conn *conn, u8 direction)
{
	return (conn->role == ROLE_SERVER) == (direction == RECEIVE);
}

static inline void expect(struct cursor *c, u8 state, u16 need)
{
	c->state = state;
	c->need = need;
	c->have = 0;
	c->number = 0;
	c->shift = 0;
}

// The cursor as the last call of its direction left it.
static inline void load_cursor(struct conn *conn, struct cursor *c, u8 direction)
{
	u64 key = conn->sk + direction;
	struct cursor_state *state = &conn->cursor_states[direction];
	struct cursor *kept = state->inside ? unfinished.lookup(&key) : 0;
	if (kept) {
		bpf_probe_read_kernel(c, sizeof(*c), kept);
	} else {
		expect(c, HEAD, state->need);
		c->have = state->have;
		bpf_probe_read_kernel(c->element, sizeof(state->header), state->header);
		c->next = state->next;
		c->proves = 0;
		c->withheld = 0;
		c->out.correlation_id = state->correlation_id;
		c->out.kind = state->kind;
	}
	c->lock = state->lock;
}

// Where there is no room for what is unfinished, what was copied of the frame leaves and its rest is skipped.
static inline void save_cursor(void *ctx, struct conn *conn, struct cursor *c, u8 direction)
{
	u64 key = conn->sk + direction;
	struct cursor_state *state = &conn->cursor_states[direction];
	int inside = c->state != HEAD, kept = inside && !unfinished.update(&key, c);
	if (inside && !kept) {
		count(LOST_LIMIT, 1);
		send_cut(ctx, conn, c);
	}
	if (state->inside && !kept)
		unfinished.delete(&key);
	state->next = inside ? c->frame_end : c->next;
	state->correlation_id = c->out.correlation_id;
	state->kind = c->out.kind;
	state->lock = c->lock;
	state->inside = kept;
	state->need = c->need;
	state->have = inside ? 0 : c->have;
	bpf_probe_read_kernel(state->header, sizeof(state->header), c->element);
}

// A length or count: `fixed` bytes, or a varint.
static inline void expect_number(struct cursor *c, u8 state, u16 fixed)
{
	expect(c, state, c->flexible ? 1 : fixed);
}

static inline void expect_bulk(struct cursor *c, u32 bytes, u8 then)
{
	expect(c, BULK, 0);
	c->bulk = bytes;
	c->bulk_then = then;
}

static inline void expect_head(struct cursor *c)
{
	expect(c, HEAD, 0); // what it needs depends on the connection: head_bytes
}

static inline void lost(struct cursor *c, u8 reason)
{
	c->lost = reason;
}

static inline void seek(struct cursor *c)
{
	c->lock = SEEKING;
	expect_head(c);
}

// Ends the copy of the current frame; its remaining bytes are skipped. The next step sends it off.
static inline void finish(struct cursor *c, u8 flags)
{
	c->out.flags |= flags | ((s32)(c->frame_end - c->next) > 0 ? FLAG_CUT : 0);
	c->next = c->frame_end;
	expect(c, FINISHED, 0);
}

static inline void malformed(struct cursor *c)
{
	lost(c, LOST_MALFORMED);
	finish(c, FLAG_CUT);
}

// The bound checked next must hold for this very register: the compiler may neither read the value again nor check a copy. 64 bits
// wide, because BCC's instruction set has no 32-bit comparisons.
#define PINNED(value) asm volatile("" : "+r"(value))

// What is read from memory again is any number to the verifier, so that the paths that led here are one path to it.
#define FORGET asm volatile("" ::: "memory")

// Every step starts with room for CHUNK bytes, enough for the two elements that one step appends at most.
static inline void append(struct cursor *c, const void *bytes, u64 size)
{
	u64 at = c->out.size;
	PINNED(at);
	if (at > DATA_BYTES - MAX_APPENDED)
		return;
	c->out.size = at + size;
	if (size == 1) {
		c->out.data[at] = *(u8 *)bytes;
		return;
	}
	PINNED(size); // bounded where it is used: before 5.16 a bound is forgotten with the register's way over the stack
	bpf_probe_read_kernel(&c->out.data[at], size & MAX_APPENDED, bytes);
}
