package gguf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

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

// Find says which file path means: path itself when it names a .gguf file, or
// the only one in the folder path; of a split model, the first part. A folder without one, or a path that is
// neither, gives ErrNotThere; a folder with several, ErrSeveral.
func Find(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", notThere(path, err)
	}
	if !st.IsDir() {
		if strings.EqualFold(filepath.Ext(path), ".gguf") {
			return Parts(path)[0], nil
		}
		return "", &Error{Path: path, Kind: ErrNotThere, Detail: "not a .gguf file"}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", notThere(path, err)
	}
	var found []string
	for _, e := range entries {
		if strings.EqualFold(filepath.Ext(e.Name()), ".gguf") {
			found = append(found, e.Name())
		}
	}
	if len(found) == 0 {
		return "", &Error{Path: path, Kind: ErrNotThere, Detail: "the folder holds no .gguf file"}
	}
	first := filepath.Join(path, found[0]) // in order of name
	if parts := Parts(first); len(parts) == len(found) && parts[len(parts)-1] == filepath.Join(path, found[len(found)-1]) {
		return first, nil
	}
	return "", &Error{Path: path, Kind: ErrSeveral, Detail: fmt.Sprintf("the folder holds %d .gguf files (%s, %s ...): name one of them", len(found), clip(found[0]), clip(found[1]))}
}

func notThere(path string, err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &Error{Path: path, Kind: ErrNotThere, Detail: err.Error()}
}
