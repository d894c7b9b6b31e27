// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The bodies that hold record sets: Produce requests and Fetch responses. Walks from topic to topic, partition to partition and
// batch to batch by their lengths; in place of a record set its summary leaves, and nothing of the records.
// Layouts: ProduceRequest.json, FetchResponse.json; record batches: Kafka's "Record Batch" (magic 2) and "Message Set" (0, 1).
#pragma once

#define BATCH_PEEK 18  // offset 8, length 4, leader epoch or CRC 4, magic 1, attributes of magic 0 and 1
#define BATCH_BYTES 61 // the header of magic 2, up to and with its record count

static inline int is_produce(struct cursor *c)
{
	return c->out.api_key == API_PRODUCE;
}

// Topic ids in place of names: Produce 13, Fetch 13.
static inline void expect_topic(struct cursor *c)
{
	if (c->out.api_version >= 13)
		expect_bulk(c, 16, COUNT_THEN);
	else
		expect_number(c, TOPIC, 2);
}

static inline void expect_partition(struct cursor *c)
{
	u8 version = c->out.api_version;
	expect(c, PARTITION, is_produce(c) ? 4 : version >= 5 ? 30 : version == 4 ? 22 : 14);
}

static inline void next_topic(struct cursor *c)
{
	c->topics--;
	c->topics ? expect_topic(c) : expect_bulk(c, c->frame_end - c->next, REST);
}

static inline void end_topic(struct cursor *c)
{
	c->flexible ? expect_tags(c, AFTER_TOPIC) : next_topic(c);
}

static inline void next_partition(struct cursor *c)
{
	c->partitions--;
	c->partitions ? expect_partition(c) : end_topic(c);
}

static inline void end_partition(struct cursor *c)
{
	c->flexible ? expect_tags(c, AFTER_TAGS) : next_partition(c);
}

static inline void summarize(struct cursor *c)
{
	struct set_summary summary = { .magic = c->magic, .codec = c->codec, .status = c->set_status };
	put_be32(summary.records, c->records);
	put_be32(summary.batches, c->batches);
	append(c, &summary, sizeof(summary));
	c->next = c->set_end;
	end_partition(c);
}

static inline void expect_batch(struct cursor *c)
{
	u32 left = c->set_end - c->next;
	c->batch = c->next;
	if (left)
		expect(c, BATCH, left < BATCH_PEEK ? left : BATCH_PEEK);
	else
		summarize(c);
}

static inline void end_set(struct cursor *c, u8 status)
{
	c->set_status = status;
	summarize(c);
}

static inline void record_set(struct cursor *c, u32 bytes)
{
	c->set_end = c->next + bytes;
	c->records = 0;
	c->batches = 0;
	c->magic = 0;
	c->codec = 0;
	c->set_status = SET_COUNTED;
	expect_batch(c);
}

// The header of a batch, or of as much as the set still holds.
static inline void batch(struct cursor *c)
{
	u32 left = c->set_end - c->batch;
	u8 magic = c->element[16];
	if (c->have < BATCH_PEEK) {
		end_set(c, SET_PARTIAL);
		return;
	}
	u32 bytes = 12 + be32(c->element + 8);
	if (bytes < BATCH_PEEK || bytes > left) { // a fetch may end inside a batch
		end_set(c, SET_PARTIAL);
		return;
	}
	if (magic >= 2 && c->have == BATCH_PEEK) {
		if (left < BATCH_BYTES)
			end_set(c, SET_PARTIAL);
		else
			c->need = BATCH_BYTES;
		return;
	}
	c->magic = magic;
	c->batches++;
	if (magic >= 2) {
		c->codec = c->element[22] & 7;
		c->records += be32(c->element + 57);
	} else {
		c->codec = c->element[17] & 7;
		if (c->codec)
			c->set_status = SET_WRAPPER;
		else
			c->records++;
	}
	c->next = c->batch + bytes;
	expect_batch(c);
}

// Where a string, a block of bytes or tagged fields lead to.
static inline void follow(struct conn *conn, struct cursor *c, u8 then)
{
	u8 version = c->out.api_version;
	switch (then) {
	case LIMITED:
		start_body(c, c->body_left);
		break;
	case BODY:
		if (is_produce(c))
			version >= 3 ? expect_number(c, TRANSACTIONAL_ID, 2) : expect(c, ACKS, 6);
		else if (version)
			expect(c, FETCH_HEAD, version >= 7 ? 10 : 4);
		else
			expect_number(c, TOPICS, 4);
		break;
	case ACKS:
		expect(c, ACKS, 6);
		break;
	case COUNT_THEN:
		expect_number(c, PARTITIONS, 4);
		break;
	case AFTER_SET:
		if (!is_produce(c) && version >= 11)
			expect(c, REPLICA, 4);
		else
			expect_number(c, RECORD_SET, 4);
		break;
	case AFTER_TAGS:
		next_partition(c);
		break;
	case AFTER_TOPIC:
		next_topic(c);
		break;
	case TAG:
		expect(c, TAG, 1);
		break;
	default:
		finish(c, 0);
	}
}

static inline void fields_complete(struct conn *conn, struct cursor *c)
{
	u8 version = c->out.api_version;
	switch (c->state) {
	case ACKS:
		if (be16(c->element)) // acks=0: there will be no response
			remember(conn, &c->out);
		expect_number(c, TOPICS, 4);
		break;
	case FETCH_HEAD:
		expect_number(c, TOPICS, 4);
		break;
	case PARTITION:
		if (!is_produce(c) && version >= 4)
			expect_number(c, ABORTED, 4);
		else
			expect_number(c, RECORD_SET, 4);
		break;
	default: // REPLICA
		expect_number(c, RECORD_SET, 4);
	}
}

// A tag counts what follows it; every other number is a length or a count that is 0 or -1 for null.
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
	if (value > c->frame_end - c->next) { // neither so many bytes nor so many elements can follow
		malformed(c);
		return;
	}
	switch (c->state) {
	case TRANSACTIONAL_ID:
		expect_bulk(c, value, ACKS);
		break;
	case TOPICS:
		c->topics = value;
		value ? expect_topic(c) : expect_bulk(c, c->frame_end - c->next, REST);
		break;
	case TOPIC:
		expect_bulk(c, value, COUNT_THEN);
		break;
	case PARTITIONS:
		c->partitions = value;
		value ? expect_partition(c) : end_topic(c);
		break;
	case ABORTED: // producer id and first offset, and tags
		expect_bulk(c, value * (c->flexible ? 17 : 16), AFTER_SET);
		break;
	case RECORD_SET:
		value ? record_set(c, value) : end_partition(c);
		break;
	case TAGS:
		c->tags = value;
		value ? expect(c, TAG, 1) : follow(conn, c, c->tags_then);
		break;
	case TAG:
		c->tags--;
		expect(c, TAG_BYTES, 1);
		break;
	default: // TAG_BYTES
		expect_bulk(c, value, c->tags ? TAG : c->tags_then);
	}
}

// The bytes at the cursor are in no buffer that can be read, or were moved unseen. Inside a record set that is expected: it ends
// here, uncounted.
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
