// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copies bodies without their record sets and values of configurations, and of opaque bytes and hidden strings only the length. A
// copy program is a list of ops that describes the layout of a body.
#pragma once
#include "big_endian.h"
#include "cursor.h"
#include "in_flight.h"
#include "maps.h"
#include "record_set.h"
#include "requests.h"
#include "sample.h"
#include "verifier.h"

static inline void read_op(struct cursor *c)
{
	u32 at = c->at_op;
	u16 *op = copy_programs.lookup(&at);
	c->op = op ? *op : OP_STOP << OPERAND_BITS;
}

static inline u32 *elements_left(struct cursor *c)
{
	u64 depth = c->depth & (MAX_DEPTH - 1);
	PINNED(depth);
	return &c->left[depth];
}

// Jump over the ops inside the current op, which is null or empty.
static inline void pass_over(struct cursor *c)
{
	go_on(c, c->op & OPERAND);
}

static inline void end_element(struct cursor *c, u16 ops)
{
	u32 *left = elements_left(c);
	if (--*left) {
		c->at_op -= ops;
	} else {
		c->depth--;
		c->at_op++;
	}
}

// Compare the tagged field of the current op with the field at the cursor. Walk into it if they are the same, else jump to the
// next op.
static inline void start_tag(struct cursor *c, u16 operand)
{
	if (c->tag == operand >> TAG_BITS)
		expect(c, TAG_BYTES, 1);
	else
		go_on(c, operand & ((1 << TAG_BITS) - 1));
}

// Continue behind a tagged field. The current op is OP_TAGS_END.
static inline void next_tag(struct cursor *c)
{
	if (--*elements_left(c)) {
		c->at_op -= c->op & OPERAND;
		expect(c, TAG, 1);
	} else {
		c->depth--;
		c->tag = INSIDE; // this section may be inside a tagged field of the version
		advance(c);
	}
}

// End the field at the cursor after its comparison with all tagged fields of the version. Skip it if it is none of them.
static inline void end_tag(struct cursor *c)
{
	if (c->tag != INSIDE) {
		expect(c, TAG_SKIPPED, 1);
	} else if ((s32)(c->tag_end - c->next) < 0) {
		malformed(c);
	} else {
		c->next = c->tag_end;
		next_tag(c);
	}
}

static inline u8 string_state(u16 operand)
{
	return operand & OP_EMPTIED ? EMPTIED : operand & OP_HIDDEN ? HIDDEN : STRING;
}

// Expect the element that the current op describes. OP_END describes none, so the op behind it starts in the same step; a second
// OP_END in a row waits for the next step.
static inline void start_op(struct cursor *c)
{
	read_op(c);
	if (c->op >> OPERAND_BITS == OP_END) {
		end_element(c, c->op & OPERAND);
		read_op(c);
	}
	u16 operand = c->op & OPERAND;
	switch (c->op >> OPERAND_BITS) {
	case OP_STOP:
		expect_bulk(c, 0, FINISHED);
		break;
	case OP_REST:
		expect_bulk(c, c->frame_end - c->next, FINISHED);
		break;
	case OP_FIXED:
	case OP_ERROR:
		expect(c, FIELDS, operand);
		break;
	case OP_ACKS:
		expect(c, ACKS, operand);
		break;
	case OP_STRING:
		expect_number(c, string_state(operand), operand & (OP_HIDDEN - 1));
		break;
	case OP_RECORDS:
		expect_number(c, RECORD_SET, 4);
		break;
	case OP_TAGS:
		expect(c, TAGS, 1);
		break;
	case OP_TAG:
		start_tag(c, operand);
		break;
	case OP_TAGS_END:
		end_tag(c);
		break;
	case OP_ITEMS:
		expect_number(c, ITEMS, 4);
		break;
	case OP_ARRAY:
		expect_number(c, ARRAY, 4);
		break;
	case OP_NULLABLE:
		expect(c, NULLABLE, 1);
		break;
	}
}

// Continue after BULK, as bulk_then demands.
static inline void follow(struct cursor *c)
{
	switch (c->bulk_then) {
	case BODY:
		start_body(c, c->body_left);
		break;
	case NEXT:
		advance(c);
		break;
	default:
		finish(c, 0);
	}
}

static inline void fields_complete(struct conn *conn, struct cursor *c)
{
	u16 acks = be16(c->element);
	if (c->state == ACKS && !conn->is_kafka && (u16)(acks + 1) > 2) { // -1, 0 or 1
		malformed(c);
		return;
	}
	if (c->state == ACKS) {
		conn->acks_unread = 0;
		conn->no_response = !acks;
		if (acks)
			call_take_request(conn->sk);
	}
	if (c->op >> OPERAND_BITS == OP_ERROR && be16(c->element) == UNSUPPORTED_VERSION) {
		c->copy_left = c->body_left;
		expect_bulk(c, c->frame_end - c->next, FINISHED);
	} else if (c->state == NULLABLE && c->element[0] & 0x80) {
		pass_over(c);
	} else {
		advance(c);
	}
}

// Copy an empty string in place of one whose length is not copied. In place of a tagged field that the version does not define,
// copy an empty field.
static inline void empty(struct cursor *c, u32 bytes)
{
	__builtin_memset(c->element, 0, 4);
	c->element[0] = c->flexible && c->state == EMPTIED;
	append(c, c->element, c->need, MAX_ELEMENT);
	c->next += bytes;
	if (c->state == EMPTIED)
		advance(c);
	else
		next_tag(c);
}

static inline void array(struct conn *conn, struct cursor *c, u32 elements)
{
	if (!elements && !conn->is_kafka && c->out.api_key == API_PRODUCE) { // no client sends this, but zeros look like it
		malformed(c);
	} else if (elements) {
		c->depth++;
		*elements_left(c) = elements;
		advance(c);
	} else {
		pass_over(c);
	}
}

static inline void tags(struct cursor *c, u32 fields)
{
	if (!fields) {
		pass_over(c);
		return;
	}
	c->depth++;
	*elements_left(c) = fields;
	c->at_op++;
	expect(c, TAG, 1);
}

// Copy elements of fixed size in one go.
static inline void items(struct cursor *c, u32 elements)
{
	u64 bytes = (u64)elements * (c->op & OPERAND);
	if (bytes > c->frame_end - c->next)
		malformed(c);
	else
		expect_bulk(c, bytes, NEXT);
}

// Process a length, a count or a tag. Varint lengths and counts are one more than their value, 0 is null; a count of tagged
// fields is exact. A fixed-size -1 is null. Null counts as 0. A tag may be any number.
static inline void number_complete(struct conn *conn, struct cursor *c)
{
	u32 value;
	if (c->need == 1) {
		u8 byte = c->element[0];
		c->number |= (u32)(byte & 0x7f) << (c->shift & 31);
		c->shift += 7;
		if (byte & 0x80) {
			c->have = 0;
			if (c->shift > 28)
				malformed(c);
			return;
		}
		value = c->number;
		if (c->state < TAGS)
			value = value ? value - 1 : 0;
	} else {
		value = c->need == 2 ? (u32)(s32)(s16)be16(c->element) : be32(c->element);
		if ((s32)value < 0)
			value = 0;
	}
	if (c->state != TAG && value > c->frame_end - c->next) { // more bytes or elements than the frame has bytes left
		malformed(c);
		return;
	}
	switch (c->state) {
	case STRING:
		expect_bulk(c, value, NEXT);
		break;
	case HIDDEN:
		c->next += value;
		advance(c);
		break;
	case EMPTIED:
	case TAG_SKIPPED:
		empty(c, value);
		break;
	case ARRAY:
		array(conn, c, value);
		break;
	case RECORD_SET:
		value ? record_set(c, value) : advance(c);
		break;
	case ITEMS:
		items(c, value);
		break;
	case TAGS:
		tags(c, value);
		break;
	case TAG:
		c->tag = value;
		(s32) value < 0 ? malformed(c) : expect(c, NEXT, 0);
		break;
	case TAG_BYTES:
		c->tag = INSIDE;
		c->tag_end = c->next + value;
		advance(c);
		break;
	}
}

// Handle bytes at the cursor that are in no readable buffer, or that no hook saw. Inside a record set that is expected: the
// record set ends here, uncounted.
static inline void unreadable(struct cursor *c)
{
	if (c->state == BATCH) {
		end_set(c, SET_UNREADABLE);
		return;
	}
	lost(c, c->lock == SEEKING ? LOST_RESYNC : LOST_UNREADABLE);
	if (c->state == HEAD) {
		c->next = c->call.end;
		seek(c);
	} else {
		finish(c, FLAG_CUT);
	}
}
