package jobs

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Logged is one engine event in the log of a job. Its index is its position among the events of all
// choices of the job.
type Logged struct {
	Choice int
	Event  engine.Event // Token, Logprob, Top, PromptLogprobs, Pooled, Finish
}

// Payload of a Tokens record: index of the first event, number of events, then for each event:
// flags, choice, [token], [logprob, top], [prompt logprobs], [vector]. Integers are varints. Floats are
// stored as bits, so they are restored exactly.
const (
	hasToken = 1 << iota
	hasLogprob
	hasPrompt
	finishStop
	finishLength
	hasVector
)

const maxEvents = 1 << 16 // of one record

// EncodeTokens encodes the payload of a Tokens record.
func EncodeTokens(first int, events []Logged) []byte {
	b := binary.AppendUvarint(nil, uint64(first))
	b = binary.AppendUvarint(b, uint64(len(events)))
	for i := range events {
		e := &events[i].Event
		var flags byte
		if e.Token != engine.NoToken {
			flags |= hasToken
		}
		if e.Logprob != 0 || e.Top != nil {
			flags |= hasLogprob
		}
		if e.PromptLogprobs != nil {
			flags |= hasPrompt
		}
		switch e.Finish {
		case engine.FinishStop:
			flags |= finishStop
		case engine.FinishLength:
			flags |= finishLength
		}
		if e.Pooled != nil {
			flags |= hasVector
		}
		b = append(b, flags)
		b = binary.AppendUvarint(b, uint64(events[i].Choice))
		if flags&hasToken != 0 {
			b = binary.AppendUvarint(b, uint64(uint32(e.Token)))
		}
		if flags&hasLogprob != 0 {
			b = appendLogprob(b, e.Logprob, e.Top)
		}
		if flags&hasPrompt != 0 {
			b = binary.AppendUvarint(b, uint64(len(e.PromptLogprobs)))
			for _, p := range e.PromptLogprobs {
				b = appendLogprob(b, p.Logprob, p.Top)
			}
		}
		if flags&hasVector != 0 {
			b = binary.AppendUvarint(b, uint64(len(e.Pooled)))
			for _, v := range e.Pooled {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
		}
	}
	return b
}

func appendLogprob(b []byte, v float32, top []sampler.TokenLogprob) []byte {
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	b = binary.AppendUvarint(b, uint64(len(top)))
	for _, t := range top {
		b = binary.AppendUvarint(b, uint64(uint32(t.Token)))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(t.Logprob))
	}
	return b
}

// tokensHead decodes only the index of the first event and the number of events.
func tokensHead(b []byte) (first, count int, err error) {
	r := reader{b: b}
	first, count = r.int(math.MaxInt32), r.int(maxEvents)
	if r.bad {
		return 0, 0, fmt.Errorf("%w: the head of its events does not decode", journal.ErrDamaged)
	}
	return first, count, nil
}

// DecodeTokens decodes the payload of a Tokens record.
func DecodeTokens(b []byte) (first int, events []Logged, err error) {
	r := reader{b: b}
	first = r.int(math.MaxInt32)
	n := r.int(maxEvents)
	for i := 0; i < n && !r.bad; i++ {
		flags := r.byte()
		e := Logged{Choice: r.int(1 << 20), Event: engine.Event{Token: engine.NoToken}}
		if flags&hasToken != 0 {
			e.Event.Token = int32(r.int(math.MaxInt32))
		}
		if flags&hasLogprob != 0 {
			e.Event.Logprob, e.Event.Top = r.logprob()
		}
		if flags&hasPrompt != 0 {
			count := r.int(len(r.b) / 5) // an entry has at least five bytes
			e.Event.PromptLogprobs = make([]engine.PromptLogprob, count)
			for k := range e.Event.PromptLogprobs {
				p := &e.Event.PromptLogprobs[k]
				p.Logprob, p.Top = r.logprob()
			}
		}
		if flags&hasVector != 0 {
			e.Event.Pooled = make([]float32, r.int(len(r.b)/4))
			for k := range e.Event.Pooled {
				e.Event.Pooled[k] = r.float()
			}
		}
		switch flags & (finishStop | finishLength) {
		case 0:
		case finishStop:
			e.Event.Finish = engine.FinishStop
		case finishLength:
			e.Event.Finish = engine.FinishLength
		default:
			r.bad = true
		}
		r.bad = r.bad || flags >= hasVector<<1
		events = append(events, e)
	}
	if r.bad || len(r.b) != 0 {
		return 0, nil, fmt.Errorf("%w: its events do not decode", journal.ErrDamaged)
	}
	return first, events, nil
}

// reader decodes values from b. bad is set when a value is missing or out of range.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) int(limit int) int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || limit < 0 || v > uint64(limit) {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) float() float32 {
	if len(r.b) < 4 {
		r.bad, r.b = true, nil
		return 0
	}
	v := math.Float32frombits(binary.LittleEndian.Uint32(r.b))
	r.b = r.b[4:]
	return v
}

func (r *reader) logprob() (v float32, top []sampler.TokenLogprob) {
	v = r.float()
	if n := r.int(len(r.b) / 5); n > 0 {
		top = make([]sampler.TokenLogprob, n)
		for i := range top {
			top[i] = sampler.TokenLogprob{Token: int32(r.int(math.MaxInt32)), Logprob: r.float()}
		}
	}
	return v, top
}
