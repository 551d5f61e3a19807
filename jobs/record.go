package jobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

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
// Little endian. The hash is our own because the store's checksums have missed
// damage before; with the name in it a record cannot stand in another journal,
// and with the chain none can go missing from the middle unseen.
type Record struct {
	kind    Kind
	number  uint32
	attempt uint32
	at      int64
	prev    [sha256.Size]byte
	payload []byte
	sum     [sha256.Size]byte
}

const (
	recordMagic = "SHJ1"
	recordHead  = 60
	// maxPayload leaves room in a message of 16 MiB.
	maxPayload = 12 << 20
)

// ErrDamaged: a record is not what was written.
var ErrDamaged = errors.New("jobs: record damaged")

// encode fills in sum and returns the bytes.
func (r *Record) encode(journal string) []byte {
	b := make([]byte, recordHead, recordHead+len(r.payload)+sha256.Size)
	copy(b, recordMagic)
	b[4] = byte(r.kind)
	binary.LittleEndian.PutUint32(b[8:], r.number)
	binary.LittleEndian.PutUint32(b[12:], r.attempt)
	binary.LittleEndian.PutUint64(b[16:], uint64(r.at))
	binary.LittleEndian.PutUint32(b[24:], uint32(len(r.payload)))
	copy(b[28:], r.prev[:])
	b = append(b, r.payload...)
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

// decodeRecord checks length and hash before it believes anything.
func decodeRecord(journal string, b []byte) (Record, error) {
	bad := func(format string, a ...any) (Record, error) {
		return Record{}, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, a...))
	}
	if len(b) < recordHead+sha256.Size {
		return bad("%d bytes, a record has at least %d: it was cut off", len(b), recordHead+sha256.Size)
	}
	if string(b[:4]) != recordMagic {
		return bad("it does not begin with %s", recordMagic)
	}
	if n := binary.LittleEndian.Uint32(b[24:]); n > maxPayload || int(n) != len(b)-recordHead-sha256.Size {
		return bad("a payload of %d bytes in a record of %d: it was cut off", n, len(b))
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sumOf(journal, body); !bytes.Equal(want[:], sum) {
		return bad("its SHA-256 is %x, it says %x: a bit has changed", want[:6], sum[:6])
	}
	return Record{kind: Kind(b[4]), number: binary.LittleEndian.Uint32(b[8:]), attempt: binary.LittleEndian.Uint32(b[12:]),
		at: int64(binary.LittleEndian.Uint64(b[16:])), prev: [sha256.Size]byte(b[28:60]), payload: body[recordHead:], sum: [sha256.Size]byte(sum)}, nil
}

// Spec is a job as it was asked for.
type Spec struct {
	Endpoint    string          `json:"endpoint"`
	Body        json.RawMessage `json:"body"`
	Key         string          `json:"key,omitempty"` // Idempotency-Key
	Seed        uint64          `json:"seed"`          // for a body without one
	Fingerprint string          `json:"fingerprint,omitempty"`
	Batch       string          `json:"batch,omitempty"`
	Line        int             `json:"line,omitempty"` // of the batch, from 0
}

// hash is what makes two requests the same: endpoint and body, whose spaces and
// order of members count.
func (s *Spec) hash() [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(s.Endpoint))
	h.Write([]byte{0})
	h.Write(s.Body)
	return [sha256.Size]byte(h.Sum(nil))
}

// ending is the payload of Retry and Dead.
type ending struct {
	Code      string          `json:"code,omitempty"`
	Message   string          `json:"message,omitempty"`
	NotBefore int64           `json:"not_before,omitempty"`
	Forgiven  bool            `json:"forgiven,omitempty"`
	Status    int             `json:"status,omitempty"` // Dead: what a client would have got
	Body      json.RawMessage `json:"body,omitempty"`
}

// committed is the payload of Done.
type committed struct {
	Bytes int    `json:"bytes"`
	Sum   []byte `json:"sha256"`
	Usage struct {
		Prompt, Completion int
	} `json:"usage"`
}

// NewRecord is the record of a note. Without a payload Retry and Dead say what the
// note says.
func NewRecord(n Note, payload []byte) Record {
	if payload == nil && (n.Kind == KindRetry || n.Kind == KindDead) {
		payload, _ = json.Marshal(ending{Code: n.Code, Message: n.Message, NotBefore: n.NotBefore, Forgiven: n.Forgiven})
	}
	return Record{kind: n.Kind, attempt: n.Attempt, at: n.At, payload: payload}
}

// Payload is what the record says beyond its note.
func (r *Record) Payload() []byte { return r.payload }

// Note is what State needs of a record.
func (r *Record) Note() (Note, error) {
	n := Note{Kind: r.kind, Attempt: r.attempt, At: r.at}
	switch r.kind {
	case KindTokens:
		var err error
		n.First, n.Count, err = tokensHead(r.payload)
		return n, err
	case KindRetry, KindDead:
		var e ending
		if err := json.Unmarshal(r.payload, &e); err != nil {
			return n, fmt.Errorf("%w: the ending does not decode: %v", ErrDamaged, err)
		}
		n.Code, n.Message, n.NotBefore, n.Forgiven = e.Code, e.Message, e.NotBefore, e.Forgiven
	}
	return n, nil
}
