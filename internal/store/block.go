package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/minio/highwayhash"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// A message block is a file N.blk of NATS's file store, a sequence of records (nats-server
// v2.15.2, server/filestore.go, writeMsgRecordLocked):
//
//	0   4  length of the record; bit 31: it has headers
//	4   8  sequence; bit 63: erased, bit 62: records a deletion
//	12  8  time, Unix nanoseconds
//	20  2  length of the subject
//	22  n  subject
//	+   4  length of the headers, if there are any; then the headers
//	+   m  message
//	+   8  HighwayHash-64 of bytes 4 to 20, subject, headers, message
//
// Little endian. The hash key is the SHA-256 of "STREAM-N". Lengths are not hashed.
const (
	blockHead   = 22
	blockSum    = 8
	emptyRecord = blockHead + blockSum

	withHeaders = 1 << 31
	seqErased   = 1 << 63
	seqDeleted  = 1 << 62
	seqFlags    = seqErased | seqDeleted
)

// block is the content of a message block. It is pure: it maps bytes to pieces.
type block struct {
	data     []byte
	hash     *highwayhash.Digest64
	subjects string // subject prefix of journals; "": the messages are not journal records
	budget   int    // bytes that the search for records may still hash
}

func newBlock(stream string, index int, subjects string, data []byte) (*block, error) {
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, index))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return &block{data: data, hash: h, subjects: subjects, budget: 64 * max(len(data), 1<<20)}, nil
}

// blockRecord is one record; its slices alias the block.
type blockRecord struct {
	length  int
	seq     uint64 // including flags
	time    uint64
	subject []byte
	headers []byte
	message []byte
}

func (r *blockRecord) number() uint64 { return r.seq &^ seqFlags }

// plain reports whether the record is a message that is not deleted.
func (r *blockRecord) plain() bool { return r.seq&seqFlags == 0 }

func (b *block) sum(r *blockRecord) []byte {
	var head [16]byte
	binary.LittleEndian.PutUint64(head[:], r.seq)
	binary.LittleEndian.PutUint64(head[8:], r.time)
	b.hash.Reset()
	for _, part := range [...][]byte{head[:], r.subject, r.headers, r.message} {
		_, _ = b.hash.Write(part) // never fails
	}
	return b.hash.Sum(nil)
}

// encode encodes a record with a valid checksum.
func (b *block) encode(r *blockRecord) []byte {
	n := emptyRecord + len(r.subject) + len(r.message)
	if len(r.headers) > 0 {
		n += 4 + len(r.headers)
	}
	out := make([]byte, blockHead, n)
	length := uint32(n)
	if len(r.headers) > 0 {
		length |= withHeaders
	}
	binary.LittleEndian.PutUint32(out, length)
	binary.LittleEndian.PutUint64(out[4:], r.seq)
	binary.LittleEndian.PutUint64(out[12:], r.time)
	binary.LittleEndian.PutUint16(out[20:], uint16(len(r.subject)))
	out = append(out, r.subject...)
	if len(r.headers) > 0 {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(r.headers))), r.headers...)
	}
	return append(append(out, r.message...), b.sum(r)...)
}

// parse decodes the record at at whose bytes end at end. ok is false if its lengths or its checksum
// do not match.
func (b *block) parse(at, end int, headers bool) (r blockRecord, ok bool) {
	d := b.data[at:end]
	if len(d) < emptyRecord {
		return r, false
	}
	r = blockRecord{length: len(d), seq: binary.LittleEndian.Uint64(d[4:]), time: binary.LittleEndian.Uint64(d[12:])}
	subject, rest := int(binary.LittleEndian.Uint16(d[20:])), d[blockHead:len(d)-blockSum]
	if subject > len(rest) {
		return r, false
	}
	r.subject, rest = rest[:subject], rest[subject:]
	if headers {
		if len(rest) < 4 {
			return r, false
		}
		n := int(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; n > len(rest) {
			return r, false
		}
		r.headers, rest = rest[:n], rest[n:]
	}
	r.message = rest
	return r, bytes.Equal(b.sum(&r), d[len(d)-blockSum:])
}

// length returns the length that the record head at at declares; 0 if it is implausible.
func (b *block) length(at int) (n int, headers bool) {
	if len(b.data)-at < emptyRecord {
		return 0, false
	}
	x := binary.LittleEndian.Uint32(b.data[at:])
	if n = int(x &^ withHeaders); n < emptyRecord || n > len(b.data)-at {
		return 0, false
	}
	return n, x&withHeaders != 0
}

// record decodes the record at at; ok is false if it is damaged.
func (b *block) record(at int) (r blockRecord, ok bool) {
	n, headers := b.length(at)
	if n == 0 {
		return r, false
	}
	if r, ok = b.parse(at, at+n, headers); !ok {
		return r, false
	}
	return r, b.plausible(&r)
}

// plausible detects damaged lengths that leave the checksum valid: a journal message must start with
// the record magic.
func (b *block) plausible(r *blockRecord) bool {
	if b.subjects == "" || !r.plain() {
		return true
	}
	name, ok := bytes.CutPrefix(r.subject, []byte(b.subjects))
	return ok && journal.IsName(string(name)) && (bytes.HasPrefix(r.message, []byte(journal.Magic)) || bytes.Equal(r.message, name))
}

// resync returns the position of the next valid record after at, or the end of the block.
func (b *block) resync(at int) int {
	for at++; at+emptyRecord <= len(b.data) && b.budget > 0; at++ {
		n, headers := b.length(at)
		if n == 0 || int(binary.LittleEndian.Uint16(b.data[at+20:])) > n-emptyRecord {
			continue
		}
		b.budget -= n
		if r, ok := b.parse(at, at+n, headers); ok && b.plausible(&r) {
			return at
		}
	}
	return len(b.data)
}

// split shortens a damaged range to end before the next damaged record in it.
func (b *block) split(at, end int) int {
	if b.subjects == "" {
		return end
	}
	for from := at + blockHead + len(b.subjects); from < end; {
		i := bytes.Index(b.data[from:end], []byte(b.subjects))
		if i < 0 {
			break
		}
		i += from
		from = i + len(b.subjects)
		if i-blockHead > at && afterName.Match(b.data[from:end]) {
			return i - blockHead
		}
	}
	return end
}

// pieceState is the result of the scan for one piece.
type pieceState uint8

const (
	pieceWhole    pieceState = iota
	pieceRepaired            // damaged lengths, sequence or subject, restored from the rest
	pieceLost
	pieceTorn // incomplete end of a block that was being written; never acknowledged
)

// piece is a range of a block: one record, or bytes without a valid record.
type piece struct {
	at, end int
	state   pieceState
	record  blockRecord // unset for pieceLost and pieceTorn
	instead []byte      // pieceRepaired and pieceLost: replacement bytes
	names   []lostName  // pieceLost: journals of the lost records
}

// lostName is the journal and sequence number of a lost record. If message is not nil, it may be
// intact and then proves the name.
type lostName struct {
	name    string
	seq     uint64
	message []byte
}

// scan splits a block into pieces. last marks the newest block of its stream. before is the newest
// sequence number of the earlier blocks.
func (b *block) scan(before uint64, last bool) (pieces []piece, newest uint64) {
	newest = before
	take := func(p piece) {
		if p.state != pieceLost && p.state != pieceTorn && p.record.seq&seqDeleted == 0 {
			newest = max(newest, p.record.number())
		}
		pieces = append(pieces, p)
	}
	for at := 0; at < len(b.data); {
		if r, ok := b.record(at); ok {
			take(piece{at: at, end: at + r.length, record: r})
			at += r.length
			continue
		}
		end := b.split(at, b.resync(at))
		next := uint64(0) // sequence number after the gap; 0: none in this block
		for p := end; p < len(b.data); {
			r, ok := b.record(p)
			if !ok {
				break
			}
			if r.seq&seqDeleted == 0 {
				next = r.number()
				break
			}
			p += r.length
		}
		p := b.repair(at, end, newest, next)
		if p.state == pieceLost && last && end == len(b.data) && b.cut(at) {
			p = piece{at: at, end: end, state: pieceTorn}
		}
		if p.state == pieceLost {
			p.names = b.lost(at, end)
			// A record marked "erased" keeps the number from being reused. A gap too small for a
			// message held a deletion.
			if number := b.number(at, newest, next); end-at > emptyRecord && (next == 0 || number < next) {
				p.instead = b.encode(&blockRecord{seq: number | seqErased})
				newest = max(newest, number)
			}
		}
		take(p)
		at = end
	}
	return pieces, newest
}

// cut reports whether the record at at extends beyond the block.
func (b *block) cut(at int) bool {
	return len(b.data)-at < emptyRecord || int(binary.LittleEndian.Uint32(b.data[at:])&^uint32(withHeaders)) > len(b.data)-at
}

// number returns the sequence number of the message at at: the one in its head if it fits between
// its neighbours, else an estimate.
func (b *block) number(at int, before, next uint64) uint64 {
	if len(b.data)-at >= emptyRecord {
		if n := binary.LittleEndian.Uint64(b.data[at+4:]); n > before && (n < next || next == 0 && n-before < 1<<20) {
			return n
		}
	}
	if next > before+1 {
		return next - 1
	}
	return before + 1
}
