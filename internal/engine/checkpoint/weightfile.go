package checkpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// A checkpoint stays open while a node runs, and its files may change: by a download in place, an
// edit, or a copy over them. Hash covers the bytes at the time of Open. A reader of weights calls
// Recheck before and Since after. If both succeed, the bytes belong to that model. CheckedRow is for
// rows that are read in every step.

// weightFile is an open file of weights.
type weightFile struct {
	*modelfile.Mapping
	of    *Checkpoint
	no    int                             // index in of.sources
	known atomic.Pointer[modelfile.Stamp] // a state whose bytes Hash covers; nil: not checked, see OpenPartial
}

func (c *Checkpoint) addFile(m *modelfile.Mapping, done func() error) *weightFile {
	f := &weightFile{Mapping: m, of: c, no: len(c.sources)}
	c.files, c.sources, c.close = append(c.files, m.Path), append(c.sources, f), append(c.close, done)
	return f
}

// offset returns the position of a part of the mapping in the file.
func (f *weightFile) offset(part []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(f.Data))))
}

func (f *weightFile) changed(how string) error {
	return &model.Error{File: f.Path, Kind: model.ErrChanged,
		Detail: how + " while the model is in use: put the old file back, or restart all nodes to serve the new one"}
}

// in reports whether the file is unchanged since the stamp; nil matches every state.
func (f *weightFile) in(known *modelfile.Stamp) bool {
	if known == nil {
		return true
	}
	now, err := f.Stamp()
	return err == nil && now == *known
}

// Mark is the state of all files of a checkpoint.
type Mark []modelfile.Stamp

func (c *Checkpoint) stamps() (Mark, error) {
	var out Mark
	for _, f := range c.sources {
		s, err := f.Stamp()
		if err != nil {
			return nil, &model.Error{File: f.Path, Kind: model.ErrChanged, Detail: err.Error()}
		}
		out = append(out, s)
	}
	return out, nil
}

// identify sets Hash from the bytes of the needed tensors. It fails if a file changed since its
// header was read.
func (c *Checkpoint) identify(needed []model.Spec) error {
	c.needed = needed
	c.life, c.end = context.WithCancel(context.Background())
	if c.fetch != nil {
		return nil // Hash was given, and each piece is checked when it is downloaded
	}
	opened := make(Mark, len(c.sources))
	for i, f := range c.sources {
		opened[i] = f.Opened
	}
	hash, sums, err := c.identity(c.life)
	if err == nil {
		err = c.Since(opened)
	}
	if err != nil {
		return err
	}
	c.hash = hash
	c.accept(opened)
	c.keepSums(sums)
	return nil
}

func (c *Checkpoint) accept(m Mark) {
	for i, f := range c.sources {
		f.known.Store(&m[i])
	}
}

// keepSums stores the digests of the embedding, whose rows are read in every step.
func (c *Checkpoint) keepSums(sums []byte) {
	at := 0
	for _, s := range c.needed {
		for i, r := range c.at[s.Name].regions() {
			n := pieceCount(len(r.data))
			if p := c.at[s.Name]; s.Name == model.Embedding && i == 0 && p.fill == nil {
				p.sums = make([][sha256.Size]byte, n)
				for k := range p.sums {
					p.sums[k] = [sha256.Size]byte(sums[(at+k)*sha256.Size:])
				}
				c.at[s.Name] = p
			}
			at += n
		}
	}
}

// Recheck returns nil if the files hold the bytes of Hash, with a mark of their state. If a file's
// size, times or inode differ from the last time, it reads the files again. The error names the
// file.
func (c *Checkpoint) Recheck(ctx context.Context) (Mark, error) {
	c.recheck.Lock()
	defer c.recheck.Unlock()
	return c.recheckLocked(ctx)
}

func (c *Checkpoint) recheckLocked(ctx context.Context) (Mark, error) {
	if c.closed.Load() {
		return nil, model.ErrClosed
	}
	now, err := c.stamps()
	if err != nil || c.fetch != nil {
		return now, err
	}
	at := slices.IndexFunc(c.sources, func(f *weightFile) bool { return !f.in(f.known.Load()) })
	if at < 0 {
		return now, nil
	}
	if c.refused != nil && slices.Equal(now, c.refusedAt) {
		return nil, c.refused
	}
	hash, _, err := c.identity(ctx)
	if err == nil {
		err = c.Since(now)
	}
	if err == nil && hash != c.hash {
		err = c.sources[at].changed(fmt.Sprintf("was changed (model %.12s, now %.12s)", c.hash, hash))
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		c.accept(now)
	}
	c.refused, c.refusedAt = err, now
	if c.OnRecheck != nil {
		c.OnRecheck(c.sources[at].Path, err)
	}
	if err != nil {
		return nil, err
	}
	return now, nil
}

// Since returns an error that names a file if one changed after the mark was taken. Bytes that were read
// in between may then belong to neither state.
func (c *Checkpoint) Since(m Mark) error {
	now, err := c.stamps()
	if err != nil {
		return err
	}
	if c.fetch != nil {
		return nil // its files change with every download
	}
	for i, f := range c.sources {
		if now[i] != m[i] {
			return f.changed("was changed")
		}
	}
	return nil
}

// SinceOf is Since for the files of one tensor.
func (c *Checkpoint) SinceOf(m Mark, t Tensor) error {
	for _, r := range t.regions() {
		if r.home == nil || c.fetch != nil {
			continue
		}
		if now, err := r.home.Stamp(); err != nil || now != m[r.home.no] {
			return r.home.changed("was changed")
		}
	}
	return nil
}

// recheckSoon starts a Recheck unless one is running. Close waits for it.
func (c *Checkpoint) recheckSoon() {
	if c.recheck.TryLock() {
		go func() {
			defer c.recheck.Unlock()
			_, _ = c.recheckLocked(c.life) // OnRecheck has the error
		}()
	}
}

// State is a state of a tensor's file in which its bytes are those of the model.
type State struct{ known *modelfile.Stamp }

// State returns the state before rows are read, for Unchanged afterwards.
func (t Tensor) State() State {
	if t.home == nil {
		return State{}
	}
	return State{t.home.known.Load()}
}

// Unchanged reports whether the tensor's file is still in that state. Rows that were read meanwhile
// are then those of the model.
func (t Tensor) Unchanged(s State) bool { return t.home == nil || t.home.in(s.known) }

// CheckedRow is Row for a tensor whose file has changed. It compares the digests of the pieces that
// contain the row. The error names the file.
func (t Tensor) CheckedRow(dst []float32, r, lo, hi int) error {
	t.home.of.recheckSoon()
	bytes := len(t.Data) / t.Rows()
	from := t.order.Row(r) * bytes
	first, last := from/pieceBytes, (from+bytes-1)/pieceBytes
	if len(t.sums) <= last {
		return t.home.changed("was changed")
	}
	at, buf := t.home.offset(t.Data), make([]byte, 0, (last+1-first)*pieceBytes)
	for i := first; i <= last; i++ {
		p := piece{t.home, at + int64(i)*pieceBytes, min(pieceBytes, len(t.Data)-i*pieceBytes)}
		part := buf[len(buf) : len(buf)+p.n]
		if err := p.read(part); err != nil {
			return err
		}
		if sha256.Sum256(part) != t.sums[i] {
			return t.home.changed("was changed")
		}
		buf = buf[:len(buf)+p.n]
	}
	one := t
	one.Data, one.Shape, one.order = buf[from-first*pieceBytes:][:bytes], []int{1, t.Cols()}, model.Order{}
	one.readRow(dst, 0, lo, hi)
	return nil
}
