package collective

import (
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// Wire format of one message, little-endian:
//
//	 0 u16 magic (high byte) and version (low byte)
//	 2 u8  kind
//	 3 u8  dtype
//	 4 u16 source rank
//	 6 u16 number of ranks
//	 8 u32 epoch
//	12 u64 operation (micro-batch<<56 | sequence)
//	20 u16 chunk
//	22 u16 chunks
//	24 u32 payload length in bytes
//	28 u32 incarnation of the source
//	32     payload
//	       u32 CRC-32C of everything before it
//
// The header has no room left, so the checksum is a trailer. Version 1 had no checksum.
const (
	HeaderBytes  = 32
	trailerBytes = 4

	magic            = 0x5A00
	version          = magic | 2
	MaxPayload       = 16<<20 - 1024 // bytes of payload in one message: under the 16 MB limit of the transports
	MaxRanks         = 1 << 12
	maxSequence      = 1<<56 - 1
	broadcastAddress = -1
)

// Kind is the type of a message. It also distinguishes the phases of one operation.
type Kind uint8

const (
	KindHello         Kind = 1 // between transports only: the hello barrier
	KindAllGather     Kind = 2
	KindAllToAll      Kind = 3
	KindReduceOneShot Kind = 4 // whole vectors of tree nodes, to all
	KindReduceScatter Kind = 5 // slices of tree nodes, each to the slice's owner
	KindReduceGather  Kind = 6 // reduced slices, to all
	KindBarrier       Kind = 8 // 7 was a broadcast
	KindPost          Kind = 9 // a message outside of any operation, by Group.Post
)

func (k Kind) String() string {
	names := [...]string{"", "hello", "all-gather", "all-to-all", "all-reduce (one-shot)", "reduce-scatter",
		"all-reduce (gather)", "broadcast", "barrier", "post"}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return names[k]
}

// Element types of payloads, as the header states them.
const (
	dtypeBytes uint8 = 0
	dtypeF32   uint8 = 1
)

// Header is the first 32 bytes of a message.
type Header struct {
	Kind        Kind
	DType       uint8
	Source      uint16
	Size        uint16 // N, ranks in the group
	Epoch       uint32
	Op          OpID
	Chunk       uint16
	Chunks      uint16
	Length      uint32 // payload bytes
	Incarnation uint32
}

// MessageBytes returns the size of a whole message with a payload of n bytes.
func MessageBytes(n int) int { return HeaderBytes + n + trailerBytes }

// PutMessage completes a message in place: msg has MessageBytes(h.Length) bytes and its payload is
// already at msg[HeaderBytes:].
func PutMessage(msg []byte, h Header) {
	le := binary.LittleEndian
	_ = msg[HeaderBytes-1]
	le.PutUint16(msg[0:], version)
	msg[2], msg[3] = byte(h.Kind), h.DType
	le.PutUint16(msg[4:], h.Source)
	le.PutUint16(msg[6:], h.Size)
	le.PutUint32(msg[8:], h.Epoch)
	le.PutUint64(msg[12:], uint64(h.Op))
	le.PutUint16(msg[20:], h.Chunk)
	le.PutUint16(msg[22:], h.Chunks)
	le.PutUint32(msg[24:], h.Length)
	le.PutUint32(msg[28:], h.Incarnation)
	end := HeaderBytes + int(h.Length)
	le.PutUint32(msg[end:], crc32c.Of(msg[:end]))
}

// ParseMessage decodes a message and checks version, lengths and checksum. The payload aliases msg.
func ParseMessage(msg []byte) (Header, []byte, Drop) {
	if len(msg) < HeaderBytes {
		return Header{}, nil, DropMalformed
	}
	le := binary.LittleEndian
	if le.Uint16(msg[0:]) != version {
		return Header{}, nil, DropVersion
	}
	h := Header{
		Kind: Kind(msg[2]), DType: msg[3],
		Source: le.Uint16(msg[4:]), Size: le.Uint16(msg[6:]), Epoch: le.Uint32(msg[8:]),
		Op: OpID(le.Uint64(msg[12:])), Chunk: le.Uint16(msg[20:]), Chunks: le.Uint16(msg[22:]),
		Length: le.Uint32(msg[24:]), Incarnation: le.Uint32(msg[28:]),
	}
	if h.Length > MaxPayload || len(msg) != MessageBytes(int(h.Length)) {
		return Header{}, nil, DropMalformed
	}
	end := HeaderBytes + int(h.Length)
	if le.Uint32(msg[end:]) != crc32c.Of(msg[:end]) {
		return Header{}, nil, DropChecksum
	}
	return h, msg[HeaderBytes:end:end], DropNone
}

// OpID numbers an operation: micro-batch<<56 | sequence. Within a micro-batch the sequence must
// rise, in the same way on all ranks. Micro-batches are independent.
type OpID uint64

// Op builds an OpID; sequence must be below 1<<56.
func Op(microBatch uint8, sequence uint64) OpID {
	return OpID(uint64(microBatch)<<56 | sequence&maxSequence)
}

// MicroBatch returns the micro-batch that the operation belongs to.
func (o OpID) MicroBatch() uint8 { return uint8(o >> 56) }

// Sequence returns the op's number within its micro-batch.
func (o OpID) Sequence() uint64 { return uint64(o) & maxSequence }

func (o OpID) String() string { return fmt.Sprintf("%d.%d", o.MicroBatch(), o.Sequence()) }
