// Package piecedigest has the SHA-256 digests of the pieces of weight files that a download computes
// from the bytes it writes, so that the first Open need not read the file.
package piecedigest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
)

// PieceBytes is the maximum size of a piece.
const PieceBytes = 256 << 10

// Span is a range of a weight file.
type Span struct {
	Off int64
	N   int
}

// Download computes the digests of the pieces of a weight file from the bytes that a download
// writes, so that the first Open need not read the file. Open reads a piece itself if Download did not
// get all its bytes, or cut the file at other places.
type Download struct {
	size       int64
	head       []byte // the file so far, until its header is complete
	parse      int64  // bytes of head at which the header is parsed next
	at         int64  // bytes of the file that were cut into pieces
	spans      []Span
	done       int // number of complete spans
	sum        hash.Hash
	sums       []byte
	notWeights bool // the file has no header of weights
}

const (
	firstHead = 1 << 20 // bytes after which a header is parsed, then after twice as many, and so on
	maxHead   = 1 << 28
)

// NewDownload returns a Download of a file of size bytes.
func NewDownload(size int64) *Download {
	return &Download{size: size, parse: min(firstHead, size), sum: sha256.New()}
}

// Write takes the next bytes of the file. It never fails.
func (d *Download) Write(p []byte) (int, error) {
	switch {
	case d.notWeights:
	case d.spans != nil:
		d.cut(p)
	default:
		d.head = append(d.head, p...)
		if int64(len(d.head)) >= d.parse {
			d.readHead()
		}
	}
	return len(p), nil
}

// readHead parses the header, and cuts the bytes that follow it.
func (d *Download) readHead() {
	spans, err := Spans(d.head, d.size)
	switch {
	case err == nil && len(spans) > 0:
		d.spans = spans
		d.cut(d.head)
		d.head = nil
	case err == nil, d.parse == d.size, d.parse >= maxHead:
		d.notWeights, d.head = true, nil
	default:
		d.parse = min(2*d.parse, d.size)
	}
}

// cut adds bytes to the digests of their pieces.
func (d *Download) cut(p []byte) {
	for len(p) > 0 && d.done < len(d.spans) {
		s := d.spans[d.done]
		if gap := s.Off - d.at; gap > 0 {
			n := min(gap, int64(len(p)))
			d.at, p = d.at+n, p[n:]
			continue
		}
		n := min(s.Off+int64(s.N)-d.at, int64(len(p)))
		d.sum.Write(p[:n])
		d.at, p = d.at+n, p[n:]
		if d.at == s.Off+int64(s.N) {
			d.sums = d.sum.Sum(d.sums)
			d.sum.Reset()
			d.done++
		}
	}
}

// Complete caches the digests for the file at path, which now has all bytes that were written. It
// waits until a later change of the file gives another stamp: 0.05 s, or 2 s on file systems that
// count seconds.
func (d *Download) Complete(ctx context.Context, path string) {
	if d.spans == nil || d.done < len(d.spans) {
		return
	}
	stamp, err := stampAt(path)
	for err == nil && !stamp.Settled(time.Now()) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	if now, err2 := stampAt(path); err != nil || err2 != nil || now != stamp || now.Size != d.size {
		return
	}
	modelfile.StoreDigests(key(path, stamp), d.sums)
}

func stampAt(path string) (modelfile.Stamp, error) {
	st, err := os.Stat(path)
	if err != nil {
		return modelfile.Stamp{}, err
	}
	return modelfile.StampOf(st), nil
}

// Cached returns the digests of n pieces that a Download cached for a file in a state.
func Cached(path string, stamp modelfile.Stamp, n int) (sums []byte, ok bool) {
	return modelfile.StoredDigests(key(path, stamp), n*sha256.Size)
}

// key returns the key of the digests of one file. Links to the file give the same key.
func key(path string, stamp modelfile.Stamp) [sha256.Size]byte {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return sha256.Sum256(fmt.Appendf(nil, "shoal pieces of a file 1, of %d bytes\n%q %+v\n", PieceBytes, path, stamp))
}

// extent is the place of a tensor in a file.
type extent struct {
	off, n int64
	shape  []int
}

// Spans returns the pieces of all tensors of a file in its order. The file begins with head and has
// size bytes. It may have no tensors. It fails if head ends within the header.
func Spans(head []byte, size int64) (out []Span, err error) {
	all, err := extents(head, size)
	slices.SortFunc(all, func(a, b extent) int { return cmp.Compare(a.off, b.off) })
	for _, t := range all {
		each := t.n
		if len(t.shape) > 2 && t.shape[0] > 0 && t.n/int64(t.shape[0]) >= minMatrix {
			each = t.n / int64(t.shape[0]) // stacked matrices of experts, which Open takes apart
		}
		for at := int64(0); at < t.n; {
			n := min(PieceBytes, each-at%each, t.n-at)
			out = append(out, Span{t.off + at, int(n)})
			at += n
		}
	}
	return out, err
}

// minMatrix bounds the number of pieces of a file by its size.
const minMatrix = 4 << 10

// extents returns the places of all tensors.
func extents(head []byte, size int64) (out []extent, err error) {
	if bytes.HasPrefix(head, []byte("GGUF")) {
		f, err := gguf.ParseHead(head, size)
		if err != nil {
			return nil, err
		}
		for _, t := range f.Tensors {
			out = append(out, extent{t.Offset, t.Bytes, t.Shape})
		}
		return out, nil
	}
	if len(head) < 9 || head[8] != '{' {
		return nil, nil
	}
	n := binary.LittleEndian.Uint64(head)
	if n > safetensors.MaxHeaderBytes || int64(n) > size-8 {
		return nil, nil
	}
	begin := 8 + int64(n)
	if begin > int64(len(head)) {
		return nil, fmt.Errorf("the header has %d bytes", n)
	}
	entries, err := safetensors.Parse(head[8:begin], size-begin)
	for _, e := range entries {
		out = append(out, extent{begin + e.Begin, e.End - e.Begin, e.Shape})
	}
	return out, err
}
