package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/piecedigest"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Digests are computed for pieces of the tensors, not for files. So the same tensors in other files
// have the same digests, and pieces can be read in parallel.
const pieceBytes = piecedigest.PieceBytes

// piece is a range of a file.
type piece struct {
	home *weightFile
	off  int64
	n    int
}

// region is a range of a mapping that belongs to a tensor.
type region struct {
	home *weightFile
	data []byte
}

// regions returns all bytes of a tensor, scales included.
func (t Tensor) regions() (out []region) {
	for _, part := range t.stored() {
		out = append(out, region{part.home, part.Data})
	}
	return out
}

func pieceCount(bytes int) int { return (bytes + pieceBytes - 1) / pieceBytes }

// pieces returns the pieces of all needed tensors, in the order of c.needed.
func (c *Checkpoint) pieces() (out []piece) {
	for _, s := range c.needed {
		for _, r := range c.at[s.Name].regions() {
			for at := 0; at < len(r.data); at += pieceBytes {
				out = append(out, piece{r.home, r.home.offset(r.data) + int64(at), min(pieceBytes, len(r.data)-at)})
			}
		}
	}
	return out
}

// digests returns the SHA-256 of each piece, concatenated. They come from the user's cache if an
// earlier Open, or a Download, cached them for files with the same stamps.
func (c *Checkpoint) digests(ctx context.Context, pieces []piece) ([]byte, error) {
	key := sha256.New()
	fmt.Fprintf(key, "shoal pieces 1, of %d bytes\n", pieceBytes)
	stamps, err := c.stamps()
	if err != nil {
		return nil, err
	}
	for i, f := range c.sources {
		path, err := filepath.Abs(f.Path)
		if err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		fmt.Fprintf(key, "%q %+v\n", path, stamps[i])
	}
	for _, s := range c.needed {
		hashTensor(key, c.at[s.Name].Tensor)
	}
	settled := func() bool {
		now := time.Now()
		for _, s := range stamps {
			if !s.Settled(now) {
				return false
			}
		}
		return c.Since(stamps) == nil
	}
	return modelfile.Digests(ctx, [sha256.Size]byte(key.Sum(nil)), len(pieces)*sha256.Size, settled, func() ([]byte, error) {
		return sumPieces(ctx, pieces, c.downloaded(stamps))
	})
}

// summed counts the hashed bytes, for tests.
var summed atomic.Int64

// sumPieces reads the pieces whose digest is not known, with one thread per CPU. It reads the files
// rather than their mappings, which would count as memory of this process.
func sumPieces(ctx context.Context, pieces []piece, known []fileDigests) ([]byte, error) {
	out := make([]byte, len(pieces)*sha256.Size)
	var next atomic.Int64
	var once sync.Once
	var failed error
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(func() {
			buf := make([]byte, pieceBytes)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(pieces) || ctx.Err() != nil {
					return
				}
				to := out[i*sha256.Size:][:sha256.Size]
				if pieces[i].known(to, known) {
					continue
				}
				if err := pieces[i].read(buf); err != nil {
					once.Do(func() { failed = err })
					cancel(err)
					return
				}
				sum := sha256.Sum256(buf[:pieces[i].n])
				copy(to, sum[:])
				summed.Add(int64(pieces[i].n))
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = context.Cause(ctx)
	}
	return out, failed
}

// known copies the digest of the piece to to, if one of the files has it.
func (p piece) known(to []byte, files []fileDigests) bool {
	for _, f := range files {
		if sum := f.of(p); sum != nil {
			copy(to, sum)
			return true
		}
	}
	return false
}

// read fills buf[:n] from the file.
func (p piece) read(buf []byte) error {
	_, err := io.ReadFull(p.home.Section(p.off, int64(p.n)), buf[:p.n])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return p.home.changed("was truncated")
	} else if err != nil {
		return &model.Error{File: p.home.Path, Kind: model.ErrFormat, Detail: "reading: " + err.Error()}
	}
	return nil
}

// fileDigests are the digests that a Download cached for a file.
type fileDigests struct {
	home  *weightFile
	spans []piecedigest.Span
	sums  []byte
}

// downloaded returns the digests that Downloads cached for files with these stamps.
func (c *Checkpoint) downloaded(stamps Mark) (out []fileDigests) {
	for i, f := range c.sources {
		if int64(len(f.Data)) != stamps[i].Size {
			continue
		}
		d := fileDigests{home: f}
		var err error
		fault := mmap.Guard(func() { d.spans, err = piecedigest.Spans(f.Data, stamps[i].Size) })
		if fault != nil || err != nil {
			continue
		}
		var ok bool
		if d.sums, ok = piecedigest.Cached(f.Path, stamps[i], len(d.spans)); ok {
			out = append(out, d)
		}
	}
	return out
}

// of returns the digest of a piece, or nil.
func (d fileDigests) of(p piece) []byte {
	if d.home != p.home {
		return nil
	}
	i, ok := slices.BinarySearchFunc(d.spans, p.off, func(s piecedigest.Span, off int64) int { return cmp.Compare(s.Off, off) })
	if !ok || d.spans[i].N != p.n {
		return nil
	}
	return d.sums[i*sha256.Size:][:sha256.Size]
}
