package eval

import (
	"encoding/json"
	"sync"

	"github.com/shoal-llm/shoal/internal/eval/resultfile"
)

// ErrStore: the results file cannot be used.
var ErrStore = resultfile.ErrFile

// keyed is a result that its key identifies.
type keyed[K comparable] interface {
	key() K
	complete() error // why a line of the file is no result
}

// resultSet keeps results in a file, one JSON object per line, and in memory. A restarted run only sends
// the missing questions.
type resultSet[K comparable, R any, P interface {
	*R
	keyed[K]
}] struct {
	mu   sync.Mutex
	file *resultfile.File // nil: in memory only
	have map[K]P
}

// open opens or creates the file. path "" keeps results in memory only. Errors wrap ErrStore.
func (s *resultSet[K, R, P]) open(path string) (err error) {
	s.have = map[K]P{}
	if path != "" {
		s.file, err = resultfile.Open(path, s.parse)
	}
	return err
}

// parse takes a line of the file.
func (s *resultSet[K, R, P]) parse(line []byte) error {
	r := P(new(R))
	if err := json.Unmarshal(line, r); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	s.have[r.key()] = r
	return nil
}

// get returns the result of a key, or nil.
func (s *resultSet[K, R, P]) get(k K) P {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[k]
}

// add stores a result. It is in the file when add returns.
func (s *resultSet[K, R, P]) add(r P) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have[r.key()] = r
	if s.file == nil {
		return nil
	}
	return s.file.Append(r)
}

// Close closes the file.
func (s *resultSet[K, R, P]) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
