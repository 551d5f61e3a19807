package store

import (
	"bytes"
	"encoding/binary"
	"regexp"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// repair restores the damaged record between at and end if the damage can be derived from the rest:
// its lengths, number, time, headers or checksum, or one bit of its subject. A journal record
// contains its own SHA-256, which verifies the rest.
func (b *block) repair(at, end int, before, next uint64) piece {
	p := piece{at: at, end: end, state: pieceLost}
	for _, headers := range [...]bool{false, true} { // derived from the piece's length
		if r, ok := b.parse(at, end, headers); ok && b.plausible(&r) {
			p.state, p.record, p.instead = pieceRepaired, r, b.encode(&r)
			return p
		}
	}
	d := b.data[at:end]
	if len(d) == emptyRecord {
		return b.repairEmpty(p)
	}
	if b.subjects == "" || len(d) < emptyRecord {
		return p
	}
	for from := blockHead; ; {
		m := bytes.Index(d[min(from, len(d)):], []byte(journal.Magic))
		if m < 0 {
			return p
		}
		m += from
		from = m + 1
		message := d[m:max(m, len(d)-blockSum)]
		if !journal.Fits(message) {
			continue
		}
		r := blockRecord{time: binary.LittleEndian.Uint64(d[12:]), subject: d[blockHead:m], message: message}
		if h := bytes.Index(r.subject, []byte("NATS/1.0")); h >= 4 {
			r.subject, r.headers = r.subject[:h-4], r.subject[h:]
		}
		name, ok := b.nameOf(r.subject, message)
		if !ok {
			continue
		}
		r.subject, r.seq = []byte(b.subjects+name), binary.LittleEndian.Uint64(d[4:])
		if !b.repairHead(&r, d[len(d)-blockSum:]) {
			r.seq = b.number(at, before, next)
		}
		if r.seq&seqFlags != 0 || r.seq <= before || next != 0 && r.seq >= next {
			return p // no sequence number fits
		}
		p.instead = b.encode(&r)
		r.length = len(p.instead)
		p.state, p.record = pieceRepaired, r
		return p
	}
}

// repairHead finds the number and time that match a checksum in which at most one bit is wrong.
func (b *block) repairHead(r *blockRecord, sum []byte) bool {
	if bytes.Equal(b.sum(r), sum) {
		return true
	}
	for _, x := range [...]*uint64{&r.seq, &r.time} {
		for bit := range 64 {
			*x ^= 1 << bit
			if bytes.Equal(b.sum(r), sum) {
				return true
			}
			*x ^= 1 << bit
		}
	}
	return false
}

// repairEmpty finds the flipped bit in the record of a deletion. Without that record, the messages of
// a dropped journal would reappear.
func (b *block) repairEmpty(p piece) piece {
	d := b.data[p.at:p.end]
	for i := range d {
		for bit := range 8 {
			d[i] ^= 1 << bit
			r, ok := b.parse(p.at, p.end, false)
			d[i] ^= 1 << bit
			if ok && !r.plain() {
				p.state, p.record, p.instead = pieceRepaired, r, b.encode(&r)
				return p
			}
		}
	}
	return p
}

// maxNameTries is the maximum number of messages for which journal names are tried.
const maxNameTries = 1 << 20

// nameOf returns the journal that a message provably belongs to: the one in its subject, or one
// that differs from it in one bit.
func (b *block) nameOf(subject, message []byte) (string, bool) {
	if len(subject) <= len(b.subjects) || len(subject) > len(b.subjects)+128 {
		return "", false
	}
	name := bytes.Clone(subject[len(b.subjects):])
	fits := func() bool {
		if !journal.IsName(string(name)) {
			return false
		}
		_, err := journal.Decode(string(name), message)
		return err == nil
	}
	if fits() {
		return string(name), true
	}
	if len(message) > maxNameTries {
		return "", false
	}
	for i := range name {
		for bit := range 8 {
			name[i] ^= 1 << bit
			if fits() {
				return string(name), true
			}
			name[i] ^= 1 << bit
		}
	}
	return "", false
}

// afterName matches a journal name followed by headers or a record.
var afterName = regexp.MustCompile(`(?s-m)^([A-Za-z0-9_-]{1,128})(?:....NATS/1\.0|` + journal.Magic + `)`)

// lost returns the journals whose records were between at and end, as far as they can be read.
func (b *block) lost(at, end int) (names []lostName) {
	if b.subjects == "" {
		return nil
	}
	d := b.data[at:end]
	for from := 0; ; {
		i := bytes.Index(d[from:], []byte(b.subjects))
		if i < 0 {
			break
		}
		i += from
		from = i + len(b.subjects)
		if m := afterName.FindSubmatch(d[from:]); m != nil && i >= blockHead {
			names = append(names, lostName{name: string(m[1]), seq: binary.LittleEndian.Uint64(d[i-blockHead+4:])})
		}
	}
	if m := bytes.Index(d, []byte(journal.Magic)); len(names) == 1 && m > 0 {
		names[0].message = d[m:max(m, len(d)-blockSum)]
	}
	if len(names) == 0 && len(d) > emptyRecord { // use the length field of the subject, if it is plausible
		n := min(int(binary.LittleEndian.Uint16(d[20:])), len(d)-emptyRecord)
		if name, ok := bytes.CutPrefix(d[blockHead:blockHead+n], []byte(b.subjects)); ok && journal.IsName(string(name)) {
			names = append(names, lostName{name: string(name), seq: binary.LittleEndian.Uint64(d[4:])})
		}
	}
	return names
}
