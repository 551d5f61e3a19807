package accelerator

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/window"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// frame holds the inputs of a step, in pinned memory and on the card. For each row these are the slot and
// the lists of blocks of its sequence, its rotations and its embedding.
type frame struct {
	card *card.Card
	host *cuda.Pinned // as on the card: rows, then cos and sin of each rotation, without gaps
	all  cuda.Pointer
	used int // bytes of this step

	rows     cuda.Pointer
	cos, sin []cuda.Pointer // of each rotation, (T, half)
	half     int

	embeddings *cuda.Pinned // (T, Hidden)
	embedded   []float32    // the same
	embeds     bool         // the step's rows begin with them
	tables     tables
	placed     placements
}

func newFrame(c *card.Card, m *allocations, d layer.Dims, maxRows int) *frame {
	turns := max(1, d.Ropes)
	f := &frame{
		card: c, half: d.HeadDim / 2, cos: make([]cuda.Pointer, turns), sin: make([]cuda.Pointer, turns),
		tables: tables{card: c, at: map[*kvcache.Store]*lists{}},
	}
	n := maxRows * (launch.RowBytes + 2*turns*4*f.half)
	f.all = m.alloc(int64(n))
	c.Must(m.err)
	f.rows = f.all
	var err error
	f.host, err = c.Pin(n)
	c.Must(err)
	f.embeddings, err = c.Pin(4 * maxRows * d.Hidden)
	c.Must(err)
	f.embedded = cuda.Floats(f.embeddings.Bytes())
	return f
}

func (f *frame) close() error {
	f.placed.close()
	return errors.Join(f.host.Close(), f.embeddings.Close(), f.tables.close())
}

// fill writes the inputs of a step, except the embeddings. It records the rows in the layers' caches.
func (f *frame) fill(b *Backend, rotations []*rotation.Table) {
	f.embeds = false
	f.tables.begin()
	f.placed.begin(b)
	t := b.batch.T
	f.used = launch.RowBytes * t
	for i := range f.cos {
		f.cos[i], f.sin[i] = f.all.Add(int64(f.used)), f.all.Add(int64(f.used+4*t*f.half))
		f.used += 2 * 4 * t * f.half
	}
	for i := range b.batch.Segments {
		s, l := &b.batch.Segments[i], new(lists)
		if s.Cache != nil { // otherwise another rank attends
			l = f.tables.of(storeOf(s), s.Prefill, s.Start+s.N, b)
			f.placed.add(b, s, l)
		}
		for j := range s.N {
			row := s.First + j
			at := f.host.Bytes()[launch.RowBytes*row:]
			for k, v := range [...]uint32{uint32(s.Start + j), uint32(l.at), uint32(l.stride), 0} {
				binary.LittleEndian.PutUint32(at[4*k:], v)
			}
			turned := cuda.Floats(f.host.Bytes()[launch.RowBytes*t : f.used])
			for _, r := range rotations {
				n := t * f.half
				r.Fill(s.Start+j, turned[row*f.half:][:f.half], turned[n+row*f.half:][:f.half])
				turned = turned[2*n:]
			}
		}
	}
}

// storeOf returns the store of a segment's cache.
func storeOf(s *layer.Segment) *kvcache.Store {
	switch c := s.Cache.(type) {
	case layer.PromptCache:
		return c.Store
	case layer.OwnedCache:
		return c.Store
	}
	panic(fmt.Sprintf("accelerator: sequence %d has a cache %T", s.Seq, s.Cache))
}

// upload puts copies of the inputs into the stream.
func (f *frame) upload(b *Backend) {
	f.card.Must(f.card.Stream.Upload(f.all, f.host.Bytes()[:f.used]))
	if f.embeds {
		f.card.Must(f.card.Stream.Upload(b.x, f.embeddings.Bytes()[:4*b.batch.T*b.dims.Hidden]))
	}
	f.tables.upload()
	f.placed.upload(b)
}

// tables holds the lists of blocks of the sequences in use. A list belongs to a cache and KV head, and has
// the numbers of its blocks: offsets in the caches' memory, in units of a block.
type tables struct {
	card  *card.Card
	host  *cuda.Pinned
	there cuda.Pointer // on the card
	bytes int64        // of either
	words []byte
	used  int  // words in use
	fresh bool // the card has the words
	step  int
	at    map[*kvcache.Store]*lists
}

// lists are the lists of one sequence. List i begins at word at + i*stride.
type lists struct {
	at, stride int
	words      int // of all lists
	changes    int // Store.Changes of the lists, and 1; 0: they are not written
	blocks     int // first blocks of each list that are written and final
	step       int // the last step that used them
}

// begin starts a step. It drops all lists when most of a large table belongs to sequences that have not
// run lately.
func (t *tables) begin() {
	t.step++
	if 8*int64(t.used) < t.bytes {
		return
	}
	live := 0
	for _, l := range t.at {
		if t.step-l.step <= lately {
			live += l.words
		}
	}
	if 2*live < t.used {
		t.used = 0
		clear(t.at)
	}
}

// lately is the number of steps for which begin keeps the lists of a sequence that does not run.
const lately = 8

// room is the number of entries by which lists grow.
const room = 64

// of returns the lists of a sequence of a number of tokens, up to date. While a prompt is read, any of
// its blocks may be replaced by a shared one; a sequence that decodes and keeps all tokens only appends, from
// the block of its next token on. The list of a window's ring has the blocks of the text, like that of
// layers without a window.
func (t *tables) of(s *kvcache.Store, prompt bool, tokens int, b *Backend) *lists {
	layers, heads, windows := s.Geometry().Layers, s.Heads(), s.Geometry().Windows
	last := (tokens - 1) / tensor.BlockSlots
	n := last + 1
	for i := range layers {
		n = max(n, len(s.Blocks(i, heads.Lo)))
	}
	l := t.at[s]
	if l == nil || l.stride < n {
		stride := (n + room) / room * room
		l = t.place(s, layers*heads.Len()*stride)
		l.stride = stride
	}
	if l.step = t.step; !prompt && windows == nil && l.changes == s.Changes()+1 {
		return l
	}
	l.changes, t.fresh = s.Changes()+1, false
	for i := range layers {
		ring := 0 // its blocks, if the layer has one
		if !prompt && i < len(windows) && windows[i] > 0 {
			ring = window.Blocks(windows[i])
		}
		for h := heads.Lo; h < heads.Hi; h++ {
			words := t.words[4*(l.at+(i*heads.Len()+h-heads.Lo)*l.stride):]
			blocks := s.Blocks(i, h)
			if ring > 0 { // also the blocks that the step's first token reads
				for j := max(0, s.Tokens()/tensor.BlockSlots-ring+1); j <= last; j++ {
					b.writeBlock(words[4*j:], blocks[j%ring])
				}
				continue
			}
			for j := l.blocks; j < len(blocks); j++ {
				b.writeBlock(words[4*j:], blocks[j])
			}
		}
	}
	if l.blocks = 0; !prompt && s.Policy().KeepsAll() {
		l.blocks = s.Tokens() / tensor.BlockSlots
	}
	return l
}

// writeBlock writes the number of a block; nil: it is outside of a window.
func (b *Backend) writeBlock(to, block []byte) {
	binary.LittleEndian.PutUint32(to, b.number(block))
}

// number returns the number of a block; nil: none.
func (b *Backend) number(block []byte) uint32 {
	if block == nil {
		return launch.NoBlock
	}
	return uint32(b.blocks.Offset(block) / int64(b.cache.BlockBytes()))
}

// place finds room for lists of n words.
func (t *tables) place(s *kvcache.Store, n int) *lists {
	if need := 4 * int64(t.used+n); need > t.bytes {
		t.grow(2 * need)
	}
	l := &lists{at: t.used, words: n, step: t.step}
	t.at[s] = l
	t.used += n
	return l
}

// grow replaces the memory by one of n bytes with the same content.
func (t *tables) grow(n int64) {
	host, err := t.card.Pin(int(n))
	t.card.Must(err)
	copy(host.Bytes(), t.words)
	t.card.Free(t.there, t.bytes)
	if t.host != nil {
		t.card.Must(t.host.Close())
	}
	t.host, t.words, t.bytes = host, host.Bytes(), n
	t.there, err = t.card.Alloc(n)
	t.card.Must(err)
	t.fresh = false
}

func (t *tables) upload() {
	if !t.fresh {
		t.card.Must(t.card.Stream.Upload(t.there, t.words[:4*t.used]))
		t.fresh = true
	}
}

func (t *tables) close() error {
	if t.host == nil {
		return nil
	}
	t.card.Free(t.there, t.bytes)
	return t.host.Close()
}
