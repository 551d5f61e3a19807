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

// Record is the result of one sample under one policy, a line of results.jsonl.
type Record struct {
	Model       string   `json:"model"`
	Fingerprint string   `json:"fingerprint,omitempty"` // of the server: weights and types
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

// key identifies a sample and the model that answered it.
type key struct {
	model, fingerprint, corpus, policy, task string
	seed                                     uint64
	length, index                            int
}

func (r *Record) key() key {
	return key{r.Model, r.Fingerprint, r.Corpus, r.Policy, r.Task, r.Seed, r.Length, r.Index}
}

// ErrStore: the results file cannot be used.
var ErrStore = errors.New("eval: results file")

// maxLine is the maximum length of a line in a file of records or questions.
const maxLine = 64 << 20

// Store keeps records in a file, one JSON object per line, and in memory. A restarted run only
// sends the missing questions.
type Store struct {
	mu   sync.Mutex
	file *os.File
	have map[key]*Record
}

// OpenStore opens or creates the file. It removes an incomplete last line, which a killed run
// leaves. path "" keeps records in memory only.
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

// read reads all complete lines and returns their length in bytes.
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

// add stores a record. It is in the file when add returns.
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
