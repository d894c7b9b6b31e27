// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Defines the maps, each with its lifecycle, and their structs.
#pragma once
#include "sample.h"

#define IN_FLIGHT 32  // power of two; further requests in flight of a connection go to `overflow`
#define MAX_DEPTH 8   // power of two
#define CHUNK 64      // most bytes that one step of the cursor moves
#define LOOKAHEAD 128 // bytes read from the caller's buffer at once, which include the next elements
#define MAX_PEERS 16384
#define SAMPLES_PER_BATCH 64 // samples that a CPU writes between two increments of `sample_batches`; power of two

struct in_flight {
	u32 correlation_id;
	u32 seen_us;
	u8 api_key;
	u8 api_version;
	u8 unsure; // the start of the request is a guess: see resync.h
};

// The position of the bytes of the running call in the caller's buffer.
struct call {
	u64 buffer; // user address of the current segment
	u64 iov;    // user address of the next struct iovec
	u32 iov_left;
	u32 segment; // offset in the call where the current segment starts
	u32 segment_bytes;
	u32 start; // TCP sequence numbers of the bytes that the call moved: [start, end)
	u32 end;
	u8 readable;
	u8 urgent; // sent with MSG_OOB
};

struct lookahead {
	u8 bytes[LOOKAHEAD];
};

enum lock { SEEKING, TENTATIVE, LOCKED }; // is the start of the next frame known?

// The state of a cursor between two calls. It is small, because a cursor inside a frame is saved in `unfinished`.
struct cursor_state {
	u32 next;           // sequence number of the next expected byte; inside a frame, of the next frame
	u32 correlation_id; // of the last frame
	u8 kind;            // of the last sample, enum sample_kind
	u8 lock;
	u8 inside; // a frame: the cursor is saved in `unfinished`
	u8 need;   // bytes of a header, of which `have` are in `header`
	u8 have;
	u8 resync; // frames were skipped in a search, and none was copied since
	u8 header[14];
};

// One direction of a connection: the start of the next Kafka frame, and the expected rest of the current one.
struct cursor {
	u32 next;            // TCP sequence number of the next expected byte
	u32 frame_end;       // sequence number behind the current frame
	u32 set_end;         // sequence number behind the current record set
	u32 batch;           // sequence number of the current record batch's first byte
	u32 left[MAX_DEPTH]; // remaining elements of the arrays and tag sections around the cursor, the current one included
	u32 tag;             // number of the current tagged field, or INSIDE
	u32 tag_end;         // sequence number behind the current tagged field
	u32 bulk;            // bytes left to copy unchanged
	u32 copy_left;       // bytes that may still be copied, of the client id or the body
	u32 body_left;       // bytes that may be copied of the body behind the client id
	u32 number;          // value so far of the varint that is read
	u32 records;         // number in the current record set
	u32 batches;
	u32 hopped;             // frames that the running hop program has hopped over
	struct set_summary set; // end_set fills in its numbers
	u8 lock;                // enum lock
	u8 resync;              // as in struct cursor_state
	u8 state;               // enum state
	u8 bulk_then;
	u8 shift;
	u8 flexible;
	u8 depth;    // of arrays and tag sections around the cursor
	u8 lost;     // enum counter: counted at the end of the step
	u8 leaving;  // `out` is complete and was submitted
	u8 withheld; // a sample of the frame was not submitted
	u8 proves;   // the frame continues the one before it: once complete, it proves that this is Kafka
	u16 at_op;   // index of the current op in `copy_programs`; 0: the body is copied unchanged
	u16 op;      // the current op
	u16 need;    // size of the element that is collected in `element`; `have` bytes of it are there
	u16 have;
	struct in_flight request; // the request that the current response answers
	u16 take;                 // bytes that the current step reads, and their index in the target
	u16 at;
	struct call call;
	u32 lookahead_start; // sequence number of the first byte of the call that was read ahead
	u32 lookahead_bytes;
	u8 element[DATA_BYTES]; // elements have at most CHUNK bytes; the array is as large as out.data for the verifier
	struct sample out;      // the sample in work
};

// A peer's use of the buffer: see peer_limit.h.
struct usage {
	u64 clock; // last reduction of `debt`: bytes that the agent has read (ring), or nanoseconds (perf buffer)
	u64 debt;
};

struct conn {
	// The agent reads these fields, too, see CONNECTION_HEAD in capture/sample.py.
	u64 id;
	u64 longest_silence_ns; // between two payloads in either direction
	u64 last_ns[2];         // last payload, by enum direction

	u64 sk;
	u64 silence_ns; // before the first sent payload that is not acknowledged
	u64 closing_ns; // time when it left ESTABLISHED
	u64 burst_ns;   // see struct close_data
	u64 pause_ns;
	u32 burst_bytes;
	u8 burst_direction;
	u8 burst_response;
	u8 burst_replied; // payload moved in the other direction
	u8 first_state;   // the TCP state that ESTABLISHED changed to
	u32 tgid;
	u32 rx_base;
	u32 tx_base;
	u32 asked;                // number of the next request: see in_flight.h
	u32 completed;            // requests before this number are answered, by the count
	u32 doubted_by_requests;  // responses to requests before this number are in doubt, because requests were skipped
	u32 doubted_by_responses; // the same, because responses were missed or unexpected
	u32 proven;               // `completed` when it was last certain
	u32 repeated;             // number of the last request whose correlation id did not rise while the count was certain
	u32 overflow_start;       // requests in flight from this number on are in `overflow`
	u32 first_correlation_id;
	u32 last_correlation_id; // of the last recorded request
	u8 side;                 // enum side
	u8 rejected;
	u8 opened;    // open_connection() has filled the entry
	u8 announced; // to user space
	u8 is_kafka;  // proven by two consistent frames, or by a request and its response
	u8 sasl_raw;
	u8 closed;       // close_connection() has run
	u8 silent;       // it was inserted at its end, and none of its bytes were seen
	u8 last_api_key; // of the last request
	u8 last_api_version;
	u8 no_response;      // the last request was a Produce with acks=0
	u8 responses_locked; // the responses' cursor was LOCKED when the last request or response was recorded
	u8 overflowing;      // some requests in flight are in `overflow`
	u8 acks_unread;      // the last request is a Produce whose acks are not read (yet)
	u8 from_start;       // seen from its first byte
	u8 holding;          // `held` contains the first request until it is proven to be one
	u8 chaining;         // a chain has begun; this field, the next five, chain and mark belong to the search in resync.h
	u8 confirmations;
	u8 answered;        // enum evidence
	u8 own_calls;       // number of latest requests in a row that each began with a send call
	u8 early_responses; // responses since the start of the last request that arrived before its end
	u8 tolerated;       // early_responses may exceed this by one
	u16 client_id_bytes;
	u32 chain; // requests from this number on belong to the chain
	u32 mark;  // responses to requests before this number confirm nothing
	u32 last_request_bytes;
	u32 sent_end;  // sequence number behind the last payload that a call has sent
	u32 read_end;  // sequence number behind the last received byte that a call has read
	u32 write_end; // sequence number behind the last sent byte, taken at the first sight and again at the close
	u32 unheld;    // frames before the proof that `held` does not contain
	struct cursor_state cursor_states[2]; // by enum direction
	u64 peer;                             // see peer_limit.h
	struct sample notice;                 // scratch for samples other than frames; contains the OPEN until it is sent
	struct in_flight in_flight[IN_FLIGHT];
};

struct overflow_key {
	u64 conn;
	u64 number; // number of the request in its connection
};

// The allowed copy of one API version, from protocol/kernel_allow_list.py. The loader fills `rules` once. Index: api_key << 5 |
// api_version.
struct rule {
	u32 request_limit; // largest number of copied bytes of a frame
	u32 response_limit;
	u32 flags;           // enum rule_flag; 0: no known API version of Kafka
	u16 request_program; // index of its first op in `copy_programs`; 0: the body is copied unchanged
	u16 response_program;
};

// A copy program describes a body that is not copied whole. protocol/copy_programs.py makes it from Kafka's schema. The upper
// four bits of an op are its kind, the others its operand, below called N.
#define OPERAND_BITS 12
#define OPERAND ((1 << OPERAND_BITS) - 1)
#define OP_HIDDEN 16 // these two are flags in the operand of OP_STRING
#define OP_EMPTIED 32
enum op {
	OP_STOP,     // end of the copy
	OP_REST,     // copies all bytes that follow
	OP_FIXED,    // copies N bytes
	OP_ACKS,     // copies N bytes that begin with the acks of a Produce request
	OP_STRING,   // copies a length (N bytes, or a varint) and its string; OP_HIDDEN: only the length; OP_EMPTIED: 0 as length
	OP_RECORDS,  // a length and that many bytes of records: copies a summary instead
	OP_TAGS,     // a count of tagged fields (KIP-482); if it is 0, jumps N ops forward
	OP_ARRAY,    // a count of elements; if it is 0, jumps N ops forward
	OP_NULLABLE, // a byte; if it is negative, the struct is null: jumps N ops forward
	OP_END,      // end of an array's element; the next element starts N ops back
	OP_ITEMS,    // copies a count of elements and the elements, each of N bytes
	OP_ERROR,    // like OP_FIXED, for the error code of ApiVersions. UNSUPPORTED_VERSION: the rest is in version 0 (KIP-511)
	OP_TAG,      // a tagged field that the version defines. N: its number << TAG_BITS | ops to the next one
	OP_TAGS_END, // behind the tagged fields of the version: skips other fields; the next field is compared from N ops back on
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

// What differs between starts. The loader fills and freezes it.
struct start {
	u32 agent_tgid;
	u32 netns; // inode of the only network namespace to watch; 0: all
	u32 hz;    // jiffies per second
};

// Programs read `start` as START, without a lookup: see capture/link.py.
BPF_F_TABLE("array", u32, struct start, start, 1, BPF_F_RDONLY_PROG);
// sock address → connection. Inserted by the first call that moves bytes of a candidate, or by the close of a candidate that
// moved none. Deleted with the socket, see lifecycle.h; if that was missed, when another socket at the same address is connected.
BPF_F_TABLE("hash", u64, struct conn, conns, MAX_CONNECTIONS, CONNECTIONS_FLAGS);
// sock addresses of the agent's own connections, which are not followed. Inserted by the agent's first call, deleted with the
// socket.
BPF_HASH(agent_socks, u64, u8, 1024);
// The cursors of running calls, by enum direction. A program is not reentered on the same CPU, and each direction has its own
// program, so one cursor per CPU and direction is enough.
BPF_PERCPU_ARRAY(running, struct cursor, 2);
// Bytes read ahead from the callers' buffers, by enum direction. Never copied to user space as a whole; the cursor copies allowed
// bytes.
BPF_PERCPU_ARRAY(lookahead, struct lookahead, 2);
// sock address + enum direction → cursor. Inserted when a call ends inside a frame. Deleted when a call ends behind the frame,
// and with the connection.
BPF_F_TABLE("hash", u64, struct cursor, unfinished, MAX_UNFINISHED, CONNECTIONS_FLAGS);
// sock address → first request of a connection that is not yet proven to speak Kafka. Deleted when it is sent, when the
// connection is rejected, and with the connection. LRU: many connections without any response must not keep out others.
BPF_TABLE("lru_hash", u64, struct sample, held, MAX_HELD);
// A zeroed connection for inserts, because it is too large for the stack. Never written.
BPF_ARRAY(empty_conn, struct conn, 1);
// connection id and request number → request in flight beyond IN_FLIGHT. Inserted by the request, deleted by its response. LRU,
// because nothing else deletes requests that are in doubt, belong to a chain that was given up, or whose connection has ended.
BPF_TABLE("lru_hash", struct overflow_key, struct in_flight, overflow, 16384);
// thread → index in the vector of a running sendmmsg or recvmmsg. Deleted at the call's end. LRU: rare, and a thread may end in a
// call.
BPF_TABLE("lru_hash", u64, struct mmsg, mmsgs, 1024);
// peer → its use of the buffer. Inserted by the first sample of a peer while the buffer is more than half full (with a perf
// buffer, always). LRU: an evicted peer starts again without debt.
BPF_TABLE("lru_hash", u64, struct usage, peers, MAX_PEERS);
BPF_ARRAY(rules, struct rule, RULES);
// Filled with `rules`. Index 0 is unused, because a rule's 0 means that it has no program.
BPF_ARRAY(copy_programs, u16, PROGRAM_OPS);
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
#if PERF_BUFFER
BPF_PERF_OUTPUT(events);
#else
BPF_RINGBUF_OUTPUT(events, RING_PAGES);
// Batches of SAMPLES_PER_BATCH samples that all CPUs have written.
BPF_ARRAY(sample_batches, u64, 1);
#endif
