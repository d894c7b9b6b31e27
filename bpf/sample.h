// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one struct that crosses to user space. 248 bytes, so that with the ring buffer's own header of 8 bytes a slot is 256 and
// the ring is an array. agent/kafka_probe/capture/sample.py holds its twin; a test compares the two field by field.
#pragma once

#define DATA_BYTES 208
#define COMMAND_LINE_BYTES 92

enum sample_kind {
	SAMPLE_FRAME = 1, // data: the frame from behind its correlation id, record sets replaced by struct set_summary
	SAMPLE_OPEN,      // data: struct open_data, on first sight of a connection
	SAMPLE_OWNER,     // data: struct open_data, when another process uses the connection
	SAMPLE_CLOSE,     // data: struct close_data, when the owner has closed it or nothing can pass any more; what was received
			  // before may still be read
	SAMPLE_REJECT,    // the connection does not speak plain Kafka; api_key: enum protocol
	SAMPLE_GONE,      // nothing more follows of the connection
	SAMPLE_RESET,     // data: struct open_data, its addresses: an RST was sent to a segment for which there is no socket
	SAMPLE_LISTEN,    // data: struct open_data, its local end and netns: a listening socket was opened, or by its flags
};

enum sample_flag {
	FLAG_RESPONSE = 1, // else a request
	FLAG_MORE = 2,     // the frame goes on in the connection's next sample of this direction
	FLAG_CUT = 4,      // the frame has bytes that were not copied
	FLAG_CLOSED = 8    // of a listening socket
};

#define NO_API 255 // a response to a request that was not seen

enum protocol { PROTOCOL_TLS = 1, PROTOCOL_UNKNOWN };

struct sample {
	u64 ts_ns;   // CLOCK_MONOTONIC, when the frame's header was complete
	u64 conn;    // id of the connection, unique per agent run
	u32 tcp_seq; // sequence number of the frame's first byte
	u32 frame_bytes;
	s32 correlation_id;
	u32 latency_us; // responses: since the request's header
	u8 api_key;
	u8 api_version;
	u8 kind;
	u8 flags;
	u16 size; // bytes used in data
	u16 part; // 0, 1, … for the samples of one frame
	u8 data[DATA_BYTES];
};

struct open_data {
	u64 start_ns;     // of the process, since boot
	u64 cgroup_id;    // in the hierarchy of v2
	u64 cgroup_v1_id; // in that of a v1 controller, 0 where there is none
	u64 cookie;       // 0: nobody has asked for it yet
	u32 tgid;         // 0: the owner is not known
	u32 uid;
	u32 netns;
	u32 rx_base; // design contract 3.3
	u32 tx_base;
	u32 handshake_us; // 0: not known
	u16 local_port;
	u16 peer_port;
	u16 family;
	u8 server_side;
	u8 from_start; // seen from its first byte
	u16 command_line_size;
	u16 pad;
	u8 local_address[16];
	u8 peer_address[16];
	char comm[16];
	u8 command_line[COMMAND_LINE_BYTES];
};

#define BURST_NS 50000000ull
#define REPLY_NS 1000000000ull
#define ALERTS_BYTES 128 // two alerts of TLS: the longest of TLS 1.2 with padding to a block

struct close_data {
	u64 closing_ns; // when this end left ESTABLISHED
	u64 sent_ns;    // the last payload in this direction, 0: none was seen
	u64 received_ns;
	u64 silence_ns; // before the first payload of those sent that are not acknowledged
	// When the last burst began: payloads in either direction with less than BURST_NS between them, or less than REPLY_NS before
	// the first in the other direction, if it answers no more than ALERTS_BYTES.
	u64 burst_ns;
	u64 pause_ns; // and the silence before it
	u64 sent_bytes;
	u64 received_bytes;
	u32 unacked_bytes;
	u32 retransmits;
	u32 srtt_us;
	u32 in_flight;
	u32 error; // sk_err
	u32 user_timeout_ms;
	u32 burst_bytes;
	u32 last_request_bytes;
	u8 first_state; // the TCP state that ESTABLISHED changed to
	u8 last_api_key;
	u8 last_api_version;
	u8 no_response; // the last request was a Produce with acks=0
	u8 retransmits_unanswered;
	u8 keepalive;
	u8 owner_exiting;
	u8 burst_direction; // of its first payload, enum direction
	u8 burst_answers;   // its first payload is a broker's after one of the client
	u8 pad[7];
};

// Stands in a frame's data where a record set stood. Big-endian, as the frame around it.
struct set_summary {
	u8 records[4];
	u8 batches[4];
	u8 magic;
	u8 codec;
	u8 status;         // enum set_status
	u8 flags;          // enum set_flag, of any of its batches
	u8 producer_id[8]; // of the first batch of magic 2; -1: there is none, or it names no producer
	u8 producer_epoch[2];
	u8 zero[2];
};

enum set_flag { SET_TRANSACTIONAL = 1, SET_CONTROL = 2 };

enum set_status {
	SET_COUNTED,
	SET_UNREADABLE,  // sent from the page cache: no buffer to read
	SET_PARTIAL,     // the broker cut the last batch; it is not counted
	SET_WRAPPER,     // compressed messages of magic 0 or 1: the inner count is unknown
	SET_IMPLAUSIBLE, // a batch names more records than its bytes can hold, or fewer than none, or has a magic above 2
};

enum counter {
	COUNT_REQUESTS,
	COUNT_RESPONSES,
	COUNT_SAMPLES,
	COUNT_CONNECTIONS,
	COUNT_REJECTED,
	LOST_RING_FULL,         // samples
	LOST_MAP_FULL,          // connections that could not be followed
	LOST_GAP,               // bytes that no hook saw, across the start of a frame
	LOST_RESYNC,            // calls and frames skipped while searching for a frame's start
	LOST_HEADER_INCOMPLETE, // the connection ended inside what was being copied
	LOST_UNREADABLE,        // the caller's buffer could not be read where it held a header
	LOST_LIMIT,             // frames cut short or hopped over: more in one call than a run of the program can follow
	LOST_UNKNOWN_VERSION,   // frames of an API or version that the rules do not have: header only
	LOST_MALFORMED,         // lengths that contradict each other
	LOST_UNMATCHED,         // responses whose request was not seen
	LOST_UNANSWERED,        // requests whose response was not seen
	LOST_OVERFLOW,          // requests in flight that were forgotten
	LOST_BEFORE_PROOF,      // frames before the one that proved their connection to be Kafka's, if they were any
	LOST_RECORD_COUNT,      // record batches whose count of records cannot be
	LOST_PEER_LIMITED,      // samples of a peer that had used its share of a buffer more than half full
	LOST_URGENT_DATA,       // connections with urgent data, which Kafka never sends
	COUNTERS,
};
