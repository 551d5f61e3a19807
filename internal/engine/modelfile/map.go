package modelfile

import (
	"errors"
	"io"
	"math"
	"os"

	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Mapping is an open file, mapped read only. Data follows the file: a process that writes to the
// file changes it, and one that truncates the file makes reads fault (see mmap.Guard). Stamp
// detects both.
type Mapping struct {
	Path   string
	Data   []byte
	Opened Stamp // taken before any byte was read

	file  *os.File
	unmap func() error
}

// ErrUnmappable reports a file that is larger than the address space.
var ErrUnmappable = errors.New("cannot be mapped on this machine")

// Map maps size bytes of f, which the caller has checked to exist. The mapping owns f unless Map
// fails.
func Map(f *os.File, size int64) (*Mapping, error) {
	if size > math.MaxInt {
		return nil, ErrUnmappable
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, unmap, err := mmap.File(f, int(size))
	if err != nil {
		return nil, err
	}
	return &Mapping{Path: f.Name(), Data: data, Opened: StampOf(st), file: f, unmap: unmap}, nil
}

// Stamp returns the file's present state, even if its name was removed or given to another file.
func (m *Mapping) Stamp() (Stamp, error) {
	st, err := m.file.Stat()
	if err != nil {
		return Stamp{}, err
	}
	return StampOf(st), nil
}

// Section reads n bytes of the file from off, without the mapping.
func (m *Mapping) Section(off, n int64) *io.SectionReader { return io.NewSectionReader(m.file, off, n) }

// Close unmaps and closes the file. Afterwards no byte of Data may be touched.
func (m *Mapping) Close() error { return errors.Join(m.unmap(), m.file.Close()) }
