package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// shard is one mapped safetensors file.
type shard struct {
	*modelfile.Mapping
	data    []byte // after the header
	entries []safetensors.Entry
}

// openShard maps a safetensors file and checks its header against its size.
func openShard(path string) (_ *shard, err error) {
	defer func() {
		var e *model.Error
		if errors.As(err, &e) && e.File == "" {
			e.File = path
		}
	}()
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	var m *modelfile.Mapping // owns f
	defer func() {
		switch {
		case err != nil && m != nil:
			err = errors.Join(err, m.Close())
		case err != nil:
			err = errors.Join(err, f.Close())
		}
	}()
	var head [8]byte
	if size < int64(len(head)) {
		return nil, malformed("%d bytes are no safetensors file: truncated before the header's length", size)
	}
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, &model.Error{File: path, Kind: model.ErrFormat, Detail: "reading the header's length: " + err.Error()}
	}
	n := binary.LittleEndian.Uint64(head[:])
	switch rest := uint64(size) - 8; {
	case string(head[:]) == "version ":
		return nil, malformed("looks like a Git LFS pointer instead of the weights (fetch them with git lfs pull)")
	case n > safetensors.MaxHeaderBytes:
		return nil, malformed("header of %d bytes, more than %d: not a safetensors file?", n, safetensors.MaxHeaderBytes)
	case n > rest:
		return nil, malformed("truncated: header of %d bytes in a file of %d", n, size)
	}
	m, err = modelfile.Map(f, size)
	if errors.Is(err, modelfile.ErrUnmappable) {
		return nil, &model.Error{Kind: model.ErrUnsupported, Detail: fmt.Sprintf("%d bytes cannot be mapped on this machine", size)}
	} else if err != nil {
		return nil, fmt.Errorf("model: %s: mapping: %w", path, err)
	}
	s := &shard{Mapping: m, data: m.Data[8+n:]}
	if fault := mmap.Guard(func() { s.entries, err = readHeader(m.Data[8:8+n], int64(len(s.data))) }); fault != nil {
		err = fault
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openRegular opens a regular file for reading and returns its size.
func openRegular(path string) (*os.File, int64, error) {
	f, st, err := modelfile.Open(path)
	if err != nil {
		return nil, 0, unreadable(path, err)
	}
	return f, st.Size(), nil
}

// readSmall reads a whole regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	data, err := modelfile.Read(path, limit)
	if err != nil {
		return nil, unreadable(path, err)
	}
	return data, nil
}

// unreadable converts an error of package modelfile to an error of this package.
func unreadable(path string, err error) error {
	if errors.Is(err, modelfile.ErrNotRegular) || errors.Is(err, modelfile.ErrTooLarge) {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return &model.Error{File: path, Kind: model.ErrFormat, Detail: err.Error()}
	}
	return notThere(path, err)
}

func notThere(path string, err error, more ...string) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &model.Error{File: path, Kind: model.ErrMissing, Detail: err.Error() + strings.Join(more, "")}
}

// readHeader is safetensors.Parse with the errors of this package.
func readHeader(header []byte, size int64) ([]safetensors.Entry, error) {
	entries, err := safetensors.Parse(header, size)
	if e, ok := errors.AsType[*safetensors.Error](err); ok {
		err = &model.Error{Tensor: e.Tensor, Kind: model.ErrFormat, Detail: e.Detail}
	}
	return entries, err
}

func malformed(format string, args ...any) error {
	return &model.Error{Kind: model.ErrFormat, Detail: fmt.Sprintf(format, args...)}
}
