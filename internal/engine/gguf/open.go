package gguf

import (
	"errors"
	"fmt"
	"os"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Open maps a file and parses its header. After Close nothing that points into the file may be
// used. (Copies, such as strings, may.)
func Open(path string) (*File, error) {
	file, st, err := modelfile.Open(path)
	if errors.Is(err, modelfile.ErrNotRegular) {
		return nil, &Error{Path: path, Kind: ErrFormat, Detail: modelfile.ErrNotRegular.Error()}
	} else if err != nil {
		return nil, notThere(path, err)
	}
	if size := st.Size(); size < 24 {
		return nil, errors.Join(&Error{Path: path, Kind: ErrFormat, Detail: fmt.Sprintf("%d bytes are not a GGUF file", size)}, file.Close())
	}
	m, err := modelfile.Map(file, st.Size())
	if errors.Is(err, modelfile.ErrUnmappable) {
		return nil, errors.Join(&Error{Path: path, Kind: ErrUnsupported,
			Detail: fmt.Sprintf("%d bytes cannot be mapped on this machine", st.Size())}, file.Close())
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("gguf: %s: mapping: %w", path, err), file.Close())
	}
	var f *File
	if fault := mmap.Guard(func() { f, err = Parse(m.Data) }); fault != nil {
		err = fmt.Errorf("gguf: %s: %w", path, fault)
	}
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			e.Path = path
		}
		return nil, errors.Join(err, m.Close())
	}
	f.Path, f.mapping = path, m
	return f, nil
}

// Mapping returns the mapping that the tensors of an open file point into.
func (f *File) Mapping() *modelfile.Mapping { return f.mapping }

func (f *File) Close() error {
	if f.mapping == nil {
		return nil
	}
	m := f.mapping
	f.mapping = nil
	return m.Close()
}

func notThere(path string, err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &Error{Path: path, Kind: ErrNotFound, Detail: err.Error()}
}
