// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The maps, each with its lifecycle, and the structs they hold.
#pragma once
#include "sample.h"

#define IN_FLIGHT 32  // power of two; what a client has outstanding beyond it goes to `overflow`
#define MAX_DEPTH 8   // power of two
#define CHUNK 64      // bytes moved by one step of the cursor at most
#define LOOKAHEAD 128 // bytes read of the caller's buffer at once: the elements that follow are in them, too
#define MAX_PEERS 16384
#define SAMPLES_PER_BATCH 64 // samples that a CPU writes between two looks at how full the buffer is; power of two

struct in_flight {
	u32 correlation_id;
	u32 ts_us;
	u8 api_key;
	u8 api_version;
	u8 unsure; // where the request starts is a guess: see finding.h
};

// Where the bytes of the running call are.
struct call {
	u64 buffer; // user address of the current segment
	u64 iov;    // user address of the next struct iovec
	u32 iov_left;
	u32 segment; // offset in the call where the current segment starts
	u32 segment_bytes;
	u32 start; // TCP sequence numbers of the bytes that the call moved: [start, end)
	u32 end;
	u8 readable;
	u8 urgent;           // sent with MSG_OOB
	u32 lookahead_start; // where what was read ahead starts
	u32 lookahead_bytes;
};

struct lookahead {
	u8 bytes[LOOKAHEAD];
};

enum lock { SEEKING, TENTATIVE, LOCKED }; // is the cursor at a frame's start?

// Where a cursor stands between two calls: little is to be kept of it, unless it is inside a frame.
struct cursor_state {
	u32 next;           // of the next frame, if it is inside of one
	u32 correlation_id; // of the last frame
	u8 kind;            // of the last sample
	u8 lock;
	u8 inside; // a frame: the cursor is in `unfinished`
	u8 need;   // of a header
	u8 have;
	u8 header[15];
};

// One direction of a connection: where the next Kafka frame starts, and what of the current one is still wanted.
struct cursor {
	u32 next;            // TCP sequence number of the next byte that is wanted
	u32 frame_end;       // sequence number behind the current frame
	u32 set_end;         // and behind the current record set
	u32 batch;           // and of the current record batch's first byte
	u32 left[MAX_DEPTH]; // elements left of the arrays and tag sections around the cursor, the current one included
	u32 tag;             // number of the current tagged field, or INSIDE
	u32 tag_end;         // sequence number behind the tagged field that is walked
	u32 bulk;            // bytes left to copy as they are
	u32 copy_left;       // bytes that may still leave, of what is being copied
	u32 body_left;       // and of the body behind it
	u32 number;          // the varint being read
	u32 records;         // of the current record set
	u32 batches;
	u32 hopped;             // frames of the running call that were hopped over in a row
	struct set_summary set; // its numbers are filled in at its end
	u8 lock;                // enum lock
	u8 state;               // enum state
	u8 bulk_then;
	u8 shift;
	u8 flexible;
	u8 depth;    // of arrays and tag sections around the cursor
	u8 lost;     // enum counter: to be counted at the end of the step
	u8 leaving;  // `out` was sent off
	u8 withheld; // a sample of the frame was not
	u8 proves;   // the frame, if it is whole, goes on from the one before it: this is Kafka
	u16 at_op;   // the op of `copy_programs` at which the cursor is; 0: the body is copied as it is
	u16 op;      // that op
	u16 need;    // size of the element being collected in `element`, and how much of it is there
	u16 have;
	struct in_flight request; // that the current response answers
	u16 take;                 // what the current step reads, and to where
	u16 at;
	struct call call;
	u8 element[DATA_BYTES]; // an element is CHUNK bytes at most; as large as out.data for the verifier
	struct sample out;      // the sample being filled
};

// What a peer has taken of the buffer: see share.h.
struct usage {
	u64 clock; // when `debt` was last reduced, in what a token comes by: bytes that were read, or nanoseconds
	u64 debt;
};

struct conn {
	u64 id; // at the beginning, for the agent to read it here, too
	u64 sk;
	u64 last_ns[2]; // last payload, by enum direction
	u64 silence_ns; // before the first payload of those sent that are not acknowledged
	u64 closing_ns; // when it left ESTABLISHED
	u64 burst_ns;   // see struct close_data
	u64 pause_ns;
	u32 burst_bytes;
	u8 burst_direction;
	u8 burst_answers;
	u8 burst_replied; // in the other direction
	u8 first_state;   // that ESTABLISHED changed to
	u32 tgid;
	u32 rx_base;
	u32 tx_base;
	u32 asked;               // number of the next request: see in_flight.h
	u32 settled;             // the requests before it were answered, by the count
	u32 doubted_by_requests; // answers to requests before it are in doubt, for requests were skipped
	u32 doubted_by_answers;  // or for answers were
	u32 proven;              // `settled` when it was certain
	u32 repeated;            // the last request whose correlation id did not rise
	u32 overflow_start;      // the requests in flight from it on are in `overflow`
	u32 first_correlation_id;
	u32 last_correlation_id; // of the last request that was taken note of
	u8 role;                 // enum role
	u8 rejected;
	u8 announced; // to user space
	u8 is_kafka;  // proven: two consistent frames, or a request and its answer
	u8 sasl_raw;
	u8 closed;       // and said to be
	u8 silent;       // it was closed before any of its bytes were seen
	u8 last_api_key; // of the last request
	u8 last_api_version;
	u8 no_response;    // it was a Produce with acks=0
	u8 answers_locked; // when the last request or answer was taken note of
	u8 overflowing;    // some requests in flight are in `overflow`
	u8 acks_unread;    // the last request is a Produce whose acks are not read yet
	u8 from_start;     // seen from its first byte
	u8 holding;        // the first request waits in `held` until it is proven to be one
	u8 chaining;       // what follows is of the search for a lost position: see finding.h
	u8 confirmations;
	u8 answered;
	u16 client_id_bytes;
	u32 chain; // in_flight from here on is of the chain
	u32 mark;  // answers to what was in flight before prove nothing
	u32 last_request_bytes;
	u32 sent_end;                         // sequence number behind the last payload that a call is known to have sent
	u32 read_end;                         // sequence number behind the last byte received that is known to have been read
	u32 write_end;                        // sequence number behind the last byte sent, as of its opening, then of its closing
	u32 unheld;                           // frames that came before the proof and did not wait
	struct cursor_state cursor_states[2]; // of the cursors, by enum direction
	u64 peer;                             // see share.h
	struct sample notice;                 // scratch: opened, owned, closed
	struct in_flight in_flight[IN_FLIGHT];
};

struct overflow_key {
	u64 conn;
	u64 number; // of the request among those of its connection
};

// What may leave of an API's version, from protocol/rules.py. Filled once by the loader; index: api_key << 5 | api_version.
struct rule {
	u32 request_limit; // bytes of a frame's data
	u32 response_limit;
	u32 flags;           // enum rule_flag; 0: not a version of Kafka that we know
	u16 request_program; // its first op in `copy_programs`; 0: the body is copied as it is
	u16 response_program;
};

// A body of which something stays behind, as protocol/copy_programs.py reads it from Kafka's definition: the kind of an op stands in its upper
// four bits, its operand in the others.
#define OPERAND_BITS 12
#define OPERAND ((1 << OPERAND_BITS) - 1)
#define OP_HIDDEN 16
enum op {
	OP_STOP,  // nothing more leaves
	OP_REST,  // what follows is copied as it is
	OP_FIXED, // so many bytes
	OP_ACKS,  // the same; they begin with the acks of a Produce request
	OP_STRING, // a length of so many bytes, or a varint, and the bytes it says; with OP_HIDDEN an empty one leaves in its place
	OP_RECORDS,  // a length and so many bytes of records
	OP_TAGS,     // a count of tagged fields (KIP-482); if it is 0 the walk goes on so many ops further
	OP_ARRAY,    // a count; if it is 0 the walk goes on so many ops further
	OP_NULLABLE, // a byte, negative if the struct that would follow is null: then too
	OP_END,      // of an array's element; the next one starts so many ops before
	OP_ITEMS,    // a count of elements, each of so many bytes, and the elements
	OP_ERROR, // like OP_FIXED: the error code of an ApiVersions response. UNSUPPORTED_VERSION: the rest is in version 0 (KIP-511)
	OP_TAG,      // a tagged field of the version: its number << TAG_BITS | how many ops further the next one stands
	OP_TAGS_END, // behind the tagged fields of the version: other fields are skipped here; the next one starts so many ops before
};
#define TAG_BITS 8

enum rule_flag {
	RULE_KNOWN = 1,
	RULE_FLEXIBLE = 2, // lengths and counts are varints (KIP-482)
};

struct mmsg {
	u64 vector;
	u64 index;
};

// sock address → connection. Inserted by the first call that moves bytes of a candidate, or when one that never moved any is closed;
// deleted when the socket is, see lifecycle.h; if that was missed, when another socket at the address is connected.
BPF_F_TABLE("hash", u64, struct conn, conns, MAX_CONNECTIONS, CONNECTIONS_FLAGS);
// sock addresses of the agent's own connections, with the same lifecycle: these are not followed.
BPF_HASH(agent_socks, u64, u8, 1024);
// The cursors of running calls, by enum direction: a program does not run while it runs already on the same CPU, and each direction
// has one of its own.
BPF_PERCPU_ARRAY(running, struct cursor, 2);
// What was read ahead of their callers' buffers, by enum direction. Never leaves: what may is copied from it.
BPF_PERCPU_ARRAY(lookahead, struct lookahead, 2);
// sock address + enum direction → cursor. Inserted when a call ends inside a frame; deleted when one ends behind it, and with the
// connection.
BPF_F_TABLE("hash", u64, struct cursor, unfinished, MAX_UNFINISHED, CONNECTIONS_FLAGS);
// sock address → first request of a connection that has not proven yet to speak Kafka. Deleted when it leaves or is none, and with the
// connection. LRU: many connections that are never answered must not keep out the others.
BPF_TABLE("lru_hash", u64, struct sample, held, MAX_HELD);
// A zeroed connection to insert: too large for the stack. Never written.
BPF_ARRAY(empty_conn, struct conn, 1);
// Requests beyond IN_FLIGHT of a connection: inserted by the request, deleted by its response; LRU, because those that are in doubt,
// and those of a connection that ends, are deleted by nothing else.
BPF_TABLE("lru_hash", struct overflow_key, struct in_flight, overflow, 16384);
// thread → position in the vector of a running sendmmsg or recvmmsg. LRU: rare, and a thread may end in mid-call.
BPF_TABLE("lru_hash", u64, struct mmsg, mmsgs, 1024);
// peer → what it has used. Inserted by the first sample of a peer while the buffer is more than half full; LRU: a peer that is forgotten
// begins anew.
BPF_TABLE("lru_hash", u64, struct usage, peers, MAX_PEERS);
BPF_ARRAY(rules, struct rule, RULES);
// Filled with them. The first op is of no walk.
BPF_ARRAY(copy_programs, u16, PROGRAM_OPS);
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
#if PERF_BUFFER
BPF_PERF_OUTPUT(events);
#else
BPF_RINGBUF_OUTPUT(events, RING_PAGES);
// How many batches of samples all CPUs have written.
BPF_ARRAY(sample_batches, u64, 1);
#define BATCHES_TO_WAKE_UP ((RING_PAGES * 4096 / sizeof(struct sample) / SAMPLES_PER_BATCH / 4) ?: 1)
#endif

// Numbers on the wire.
static inline u32 be32(const u8 *p)
{
	return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
}

static inline u16 be16(const u8 *p)
{
	return (u16)p[0] << 8 | p[1];
}

static inline void put_be32(u8 *p, u32 value)
{
	p[0] = value >> 24;
	p[1] = value >> 16;
	p[2] = value >> 8;
	p[3] = value;
}

// Atomic, because an fexit program can be preempted by another on its CPU.
static inline void count(u32 which, u64 n)
{
	u64 *value = counters.lookup(&which);
	if (value)
		__sync_fetch_and_add(value, n);
}

#if !PERF_BUFFER
// Whether a quarter of the buffer was written since the last time. Two CPUs may count as one: then it is a little more.
static inline bool fills(u64 written)
{
	u32 all = 0;
	u64 *count = written % SAMPLES_PER_BATCH ? 0 : sample_batches.lookup(&all);
	return count && ++*count % BATCHES_TO_WAKE_UP == 0;
}
#endif

// Sends off a sample; not 0 when there is no room. A wake-up costs more than a sample: the reader looks by itself every so
// often, and is woken when the buffer fills.
static inline int emit(void *ctx, struct sample *sample)
{
	u32 which = COUNT_SAMPLES;
	u64 *written = counters.lookup(&which);
	if (!written)
		return -1;
	__sync_fetch_and_add(written, 1);
#if PERF_BUFFER
	return events.perf_submit(ctx, sample, sizeof(*sample));
#else
	return events.ringbuf_output(sample, sizeof(*sample), fills(*written) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
#endif
}
