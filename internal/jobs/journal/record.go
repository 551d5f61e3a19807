package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind of a record. The numbers are part of the disk format: 1 to 15 belong to jobs, 16 to 23 to
// batches, 24 to 31 to files, 32 to 39 to sessions.
type Kind uint8

// Record is one message of a journal:
//
//	0   4  magic "SHJ1"
//	4   1  kind
//	5   3  zero
//	8   4  number in its journal, from 0
//	12  4  attempt
//	16  8  time, Unix milliseconds
//	24  4  length of the payload
//	28  32 hash of the record before it, zero in the first
//	60  n  payload
//	+   32 SHA-256 of the journal's name and all of the above
//
// Little endian. Records have their own hash because the store's checksums have missed
// damage. The journal's name in the hash keeps a record from appearing in another
// journal. The hash chain detects records missing from the middle.
type Record struct {
	Kind    Kind
	Attempt uint32 // attempt of a job; 0 in other journals
	At      int64  // Unix milliseconds
	Payload []byte

	Number    uint32 // number in its journal, from 0
	prev, sum [sha256.Size]byte
}

const (
	// Magic starts every record.
	Magic      = "SHJ1"
	recordHead = 60
	// maxPayload leaves room for the header in a message of 16 MiB.
	maxPayload = 12 << 20
)

var (
	// ErrDamaged: a record differs from the written one.
	ErrDamaged = errors.New("journal: record damaged")
	// ErrConflict: another process has written to the journal.
	ErrConflict = errors.New("journal: the journal has moved on")
	// ErrFull: the log has reached its size limit.
	ErrFull = errors.New("journal: the job store is full")
	// ErrNoAnswer: the log gave no answer. It may give one later.
	ErrNoAnswer = errors.New("journal: the log does not answer")
	// ErrMismatch: the idempotency key was used with another request.
	ErrMismatch = errors.New("journal: the idempotency key was used with another request")
)

// Encode sets the hash and returns the encoded record.
func (r *Record) Encode(journal string) []byte {
	b := make([]byte, recordHead, recordHead+len(r.Payload)+sha256.Size)
	copy(b, Magic)
	b[4] = byte(r.Kind)
	binary.LittleEndian.PutUint32(b[8:], r.Number)
	binary.LittleEndian.PutUint32(b[12:], r.Attempt)
	binary.LittleEndian.PutUint64(b[16:], uint64(r.At))
	binary.LittleEndian.PutUint32(b[24:], uint32(len(r.Payload)))
	copy(b[28:], r.prev[:])
	b = append(b, r.Payload...)
	r.sum = sumOf(journal, b)
	return append(b, r.sum[:]...)
}

func sumOf(journal string, b []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(journal))
	h.Write([]byte{0})
	h.Write(b)
	return [sha256.Size]byte(h.Sum(nil))
}

// Fits reports whether the length field matches the data. It is a check without hashing.
func Fits(b []byte) bool {
	return len(b) >= recordHead+sha256.Size && uint64(binary.LittleEndian.Uint32(b[24:])) == uint64(len(b)-recordHead-sha256.Size)
}

// Decode decodes a record after verifying its length and hash.
func Decode(journal string, b []byte) (Record, error) {
	bad := func(format string, a ...any) (Record, error) {
		return Record{}, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, a...))
	}
	if len(b) < recordHead+sha256.Size {
		return bad("%d bytes, but a record has at least %d: it is truncated", len(b), recordHead+sha256.Size)
	}
	if string(b[:4]) != Magic {
		return bad("it does not start with %s", Magic)
	}
	if n := binary.LittleEndian.Uint32(b[24:]); n > maxPayload || int(n) != len(b)-recordHead-sha256.Size {
		return bad("a payload of %d bytes in a record of %d: it is truncated", n, len(b))
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sumOf(journal, body); !bytes.Equal(want[:], sum) {
		return bad("its SHA-256 is %x, but the record has %x: some bits have changed", want[:6], sum[:6])
	}
	return Record{Kind: Kind(b[4]), Number: binary.LittleEndian.Uint32(b[8:]), Attempt: binary.LittleEndian.Uint32(b[12:]),
		At: int64(binary.LittleEndian.Uint64(b[16:])), prev: [sha256.Size]byte(b[28:60]),
		Payload: body[recordHead:], sum: [sha256.Size]byte(sum)}, nil
}
