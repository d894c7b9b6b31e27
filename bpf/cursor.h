// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Defines the cursor's states, keeps its position between calls, and appends bytes to the sample in work. It parses no frame.
#pragma once
#include "counters.h"
#include "lifecycle.h"
#include "maps.h"
#include "sample.h"
#include "sock.h"
#include "verifier.h"

#define MAX_FRAME_BYTES (1 << 30)
// Size limits of a copied element, and of a record set's summary; powers of two minus one.
#define MAX_ELEMENT 31
#define MAX_SUMMARY 63

// The element that the cursor expects next. NUMBER marks lengths and counts: fixed-size, or a varint in flexible versions.
#define NUMBER 0x80
enum state {
	HEAD,     // size and header of a frame
	BULK,     // bytes that are copied unchanged
	FIELDS,   // fields of fixed size
	ACKS,     // the same, with the acks of a Produce request
	NULLABLE, // the byte that marks a struct as null
	BATCH,    // the header of a record batch, which is never copied
	BODY,     // no bytes: the body begins
	NEXT,     // no bytes: the next op begins
	FINISHED, // no bytes: the last sample of the frame is complete
	STRING = NUMBER,
	HIDDEN,  // the length of a string that is not copied
	EMPTIED, // the same, and its length is not copied either
	ARRAY,
	RECORD_SET,
	ITEMS,
	TAGS, // from here on varints are exact, not the value plus one
	TAG,
	TAG_BYTES,
	TAG_SKIPPED,
};

// A test compares these with protocol/api_keys.py, which is generated.
enum { API_PRODUCE = 0, API_CONTROLLED_SHUTDOWN = 7, API_SASL_HANDSHAKE = 17, API_VERSIONS = 18 };
enum { API_KEYS = RULES >> 5 };
#define UNSUPPORTED_VERSION 35 // error code
#define INSIDE 0xffffffff      // instead of a tag: the cursor is inside or behind a tagged field that the version defines

// Result of a step or hop.
enum outcome {
	DONE,   // the call has no more bytes for the cursor
	MORE,   // the caller repeats it
	SUBMIT, // the caller has to act first: submit the sample, or take a step instead of a hop
};

static inline int is_request(struct conn *conn, u8 direction)
{
	return (conn->side == SIDE_SERVER) == (direction == RECEIVE);
}

static inline void expect(struct cursor *c, u8 state, u16 need)
{
	c->state = state;
	c->need = need;
	c->have = 0;
	c->number = 0;
	c->shift = 0;
}

// Load the cursor that the last call of the direction saved.
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
	c->resync = state->resync;
}

// Save the cursor for the next call. If `unfinished` is full, send the copied part of the frame and skip the rest.
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
	state->resync = c->resync;
	state->inside = kept;
	state->need = c->need;
	state->have = inside ? 0 : c->have;
	bpf_probe_read_kernel(state->header, sizeof(state->header), c->element);
}

// Expect a length or count: `fixed` bytes, or a varint.
static inline void expect_number(struct cursor *c, u8 state, u16 fixed)
{
	expect(c, state, c->flexible ? 1 : fixed);
}

static inline void go_on(struct cursor *c, u16 ops)
{
	c->at_op += ops;
	expect(c, NEXT, 0);
}

// Continue with the next op.
static inline void advance(struct cursor *c)
{
	go_on(c, 1);
}

static inline void expect_bulk(struct cursor *c, u32 bytes, u8 then)
{
	expect(c, BULK, 0);
	c->bulk = bytes;
	c->bulk_then = then;
}

static inline void expect_head(struct cursor *c)
{
	expect(c, HEAD, 0); // the needed bytes depend on the connection: head_bytes
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

// End the copy of the current frame and skip its remaining bytes. The next step submits the sample.
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

// Append bytes to the sample. Every step starts with CHUNK free bytes in it, enough for the one element or summary that it appends.
// most: MAX_ELEMENT or MAX_SUMMARY.
static inline void append(struct cursor *c, const void *bytes, u64 size, u64 most)
{
	u64 at = c->out.size;
	PINNED(at);
	if (at > DATA_BYTES - most)
		return;
	c->out.size = at + size;
	if (size == 1) {
		c->out.data[at] = *(u8 *)bytes;
		return;
	}
	PINNED(size); // bounded here, because kernels before 5.16 lose the bound of a register spilled to the stack
	bpf_probe_read_kernel(&c->out.data[at], size & most, bytes);
}
