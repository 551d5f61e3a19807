package checkpoint

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Span is the byte range [From, To) of a file.
type Span struct{ From, To int64 }

// Fetcher downloads bytes of a checkpoint's files. When Fetch returns nil, they are in the file and
// verified. It may be called concurrently.
type Fetcher interface {
	Fetch(ctx context.Context, file string, spans []Span) error
}

// OpenPartial opens a folder whose weight files have their full size and their header, but only the
// tensors that f has downloaded. hash is the Hash of the complete checkpoint. Call Fetch before
// reading a tensor.
func OpenPartial(ctx context.Context, dir, hash string, f Fetcher) (*Checkpoint, error) {
	c := &Checkpoint{Dir: filepath.Clean(dir), at: map[string]place{}, fetch: f, hash: hash, fetching: ctx}
	var err error
	if fault := mmap.Guard(func() { err = c.open() }); fault != nil {
		err = fmt.Errorf("model: %s: %w", dir, fault)
	}
	if err != nil {
		return nil, err
	}
	c.fetching = nil
	return c, nil
}

// Fetch downloads rows and columns [lo, hi) of a tensor. It returns at once for a complete
// checkpoint.
func (c *Checkpoint) Fetch(ctx context.Context, name string, rowLo, rowHi, colLo, colHi int) error {
	p, ok := c.at[name]
	if c.fetch == nil || !ok || p.offset == 0 || rowLo >= rowHi || colLo >= colHi {
		return nil
	}
	rows, cols := int64(p.Rows()), int64(p.Cols())
	if rowLo < 0 || int64(rowHi) > rows || colLo < 0 || int64(colHi) > cols {
		return fmt.Errorf("model: tensor %q of shape %v has no rows [%d, %d), columns [%d, %d)", name, p.Shape, rowLo, rowHi, colLo, colHi)
	}
	if p.form != nil {
		for i, part := range p.parts {
			var spans []Span
			from := part.home.offset(part.Data)
			for _, s := range p.form.Bytes(i, rowLo, rowHi, colLo, colHi) {
				spans = append(spans, Span{from + int64(s[0]), from + int64(s[1])})
			}
			if err := c.fetch.Fetch(ctx, filepath.Base(part.home.Path), spans); err != nil {
				return err
			}
		}
		return nil
	}
	if p.parts != nil { // columns of a stack's matrix, or several stored tensors
		for _, r := range p.regions() {
			from := r.home.offset(r.data)
			if err := c.fetch.Fetch(ctx, filepath.Base(r.home.Path), []Span{{from, from + int64(len(r.data))}}); err != nil {
				return err
			}
		}
		return nil
	}
	each := int64(len(p.Data)) / (rows * cols)
	whole := colHi-colLo == int(cols)
	var spans []Span
	for r := int64(rowLo); r < int64(rowHi); r++ {
		from := p.offset + (r*cols+int64(colLo))*each
		to := p.offset + (r*cols+int64(colHi))*each
		if whole {
			to = p.offset + int64(rowHi)*cols*each
			spans = append(spans, Span{from, to})
			break
		}
		spans = append(spans, Span{from, to})
	}
	return c.fetch.Fetch(ctx, filepath.Base(p.path), spans)
}

// wantSmall downloads everything except matrices of several rows.
func (c *Checkpoint) wantSmall() error {
	if c.fetch == nil {
		return nil
	}
	byFile := map[string][]Span{}
	for name, p := range c.at {
		if !(c.nested && isTower(name)) && p.Rows() == 1 {
			file := filepath.Base(p.path)
			byFile[file] = append(byFile[file], Span{p.offset, p.offset + int64(len(p.Data))})
		}
	}
	for file, spans := range byFile {
		if err := c.fetch.Fetch(c.fetching, file, spans); err != nil {
			return err
		}
	}
	return nil
}

// Head returns the number of bytes before the tensors in a weight file of size bytes. With them,
// OpenPartial can open it. For a GGUF file it is the whole file.
func (c *Checkpoint) Head(path string, size int64) int64 {
	if head, ok := c.heads[path]; ok {
		return head
	}
	return size
}
