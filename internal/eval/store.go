package eval

import "errors"

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

// maxLine is the maximum length of a line in a file of questions.
const maxLine = 64 << 20

func (r *Record) complete() error {
	if r.Task == "" || r.Length <= 0 {
		return errors.New("it has no task or length")
	}
	return nil
}

// Store keeps the records of generated tasks.
type Store struct {
	resultSet[key, Record, *Record]
}

// OpenStore opens or creates a file of records. path "" keeps them in memory only. Errors wrap ErrStore.
func OpenStore(path string) (*Store, error) {
	s := new(Store)
	return s, s.open(path)
}
