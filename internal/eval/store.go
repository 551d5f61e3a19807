package eval

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/shoal-llm/shoal/internal/eval/resultfile"
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
var ErrStore = resultfile.ErrFile

// maxLine is the maximum length of a line in a file of questions.
const maxLine = 64 << 20

// Store keeps records in a file, one JSON object per line, and in memory. A restarted run only
// sends the missing questions.
type Store struct {
	mu   sync.Mutex
	file *resultfile.File // nil: in memory only
	have map[key]*Record
}

// OpenStore opens or creates the file. path "" keeps records in memory only.
func OpenStore(path string) (*Store, error) {
	s := &Store{have: map[key]*Record{}}
	if path == "" {
		return s, nil
	}
	var err error
	s.file, err = resultfile.Open(path, s.parse)
	return s, err
}

// parse takes a line of the file.
func (s *Store) parse(line []byte) error {
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return err
	}
	if r.Task == "" || r.Length <= 0 {
		return errors.New("it has no task or length")
	}
	s.have[r.key()] = r
	return nil
}

func (s *Store) get(k key) *Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[k]
}

// add stores a record. It is in the file when add returns.
func (s *Store) add(r *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have[r.key()] = r
	if s.file == nil {
		return nil
	}
	return s.file.Append(r)
}

func (s *Store) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
