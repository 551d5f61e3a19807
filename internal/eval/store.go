package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Record is the result of one sample under one policy: one line of results.jsonl.
type Record struct {
	Model       string   `json:"model"`
	Fingerprint string   `json:"fingerprint,omitempty"` // the server's: weights and types
	Corpus      string   `json:"corpus"`
	Seed        uint64   `json:"seed"`
	Policy      string   `json:"policy"`
	Task        string   `json:"task"`
	Length      int      `json:"length"` // prompt tokens
	Index       int      `json:"index"`
	Exact       bool     `json:"exact"`
	Tokens      float64  `json:"tokens"`
	Recall      float64  `json:"recall"`
	Depth       *float64 `json:"depth,omitempty"` // of the single needle, 0 to 1
	Answer      string   `json:"answer"`
	Output      string   `json:"output"`
	Millis      int64    `json:"ms"`
}

// key tells samples apart that were asked of the same model.
type key struct {
	model, fingerprint, corpus, policy, task string
	seed                                     uint64
	length, index                            int
}

func (r *Record) key() key {
	return key{r.Model, r.Fingerprint, r.Corpus, r.Policy, r.Task, r.Seed, r.Length, r.Index}
}

// ErrStore means that the file of results cannot be used.
var ErrStore = errors.New("eval: results file")

// maxLine bounds one line of a file of records or questions.
const maxLine = 64 << 20

// Store keeps records in a file, one JSON object a line, and knows which are
// there: a run that is started again asks only what is missing.
type Store struct {
	mu   sync.Mutex
	file *os.File
	have map[key]*Record
}

// OpenStore opens or makes the file. A last line that was not finished (the run
// was killed) is cut off. path "" keeps records in memory only.
func OpenStore(path string) (*Store, error) {
	s := &Store{have: map[key]*Record{}}
	if path == "" {
		return s, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStore, err)
	}
	whole, err := s.read(f)
	if err == nil {
		err = f.Truncate(whole)
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w %s: %w", ErrStore, path, err)
	}
	s.file = f
	return s, nil
}

// read takes all whole lines and returns their length in bytes.
func (s *Store) read(f io.Reader) (whole int64, err error) {
	in := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return 0, err
		}
		r := new(Record)
		if err := json.Unmarshal(line, r); err != nil || r.Task == "" || r.Length <= 0 {
			return 0, fmt.Errorf("line %d is not a result (%.60q): move the file away or name another folder", n, bytes.TrimSpace(line))
		}
		s.have[r.key()] = r
		whole += int64(len(line))
	}
}

func (s *Store) get(k key) *Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[k]
}

// add keeps a record; it is in the file when add returns.
func (s *Store) add(r *Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have[r.key()] = r
	if s.file == nil {
		return nil
	}
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}

func (s *Store) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
