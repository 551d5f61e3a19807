package gguf

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/shoal-llm/shoal/internal/mmap"
	"github.com/shoal-llm/shoal/internal/modelfile"
)

// Open maps a file and parses its header. The caller closes it; nothing that
// points into it may be touched afterwards. (Copies, such as strings, may.)
func Open(path string) (*File, error) {
	file, st, err := modelfile.Open(path)
	if errors.Is(err, modelfile.ErrNotRegular) {
		return nil, &Error{Path: path, Kind: ErrFormat, Detail: modelfile.ErrNotRegular.Error()}
	} else if err != nil {
		return nil, notThere(path, err)
	}
	defer file.Close()
	switch size := st.Size(); {
	case size < 24:
		return nil, &Error{Path: path, Kind: ErrFormat, Detail: fmt.Sprintf("%d bytes are no GGUF file", size)}
	case size > math.MaxInt:
		return nil, &Error{Path: path, Kind: ErrUnsupported, Detail: fmt.Sprintf("%d bytes cannot be mapped on this machine", size)}
	}
	data, done, err := mmap.File(file, int(st.Size()))
	if err != nil {
		return nil, fmt.Errorf("gguf: %s: mapping: %w", path, err)
	}
	f, err := Parse(data)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			e.Path = path
		}
		return nil, errors.Join(err, done())
	}
	f.Path, f.done = path, done
	return f, nil
}

func (f *File) Close() error {
	if f.done == nil {
		return nil
	}
	done := f.done
	f.done = nil
	return done()
}

func notThere(path string, err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &Error{Path: path, Kind: ErrNotThere, Detail: err.Error()}
}
