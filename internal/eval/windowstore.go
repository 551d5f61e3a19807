package eval

import "errors"

// WindowRecord is the score of one window of a text under one policy, a line of windows.jsonl.
type WindowRecord struct {
	Model       string  `json:"model"`
	Fingerprint string  `json:"fingerprint"` // weights and types
	Policy      string  `json:"kv_policy"`   // in its normal form
	Window      string  `json:"window"`      // hash of its tokens
	Prefix      int     `json:"prefix"`      // tokens of it that were read as a prompt
	Tokens      int     `json:"tokens"`      // number of scored tokens
	NLL         float64 `json:"nll"`         // sum of their negative log likelihoods, in nats
	Matches     int     `json:"matches"`     // tokens after which the most likely token is that of full attention
}

// windowKey identifies a window, a policy and the model.
type windowKey struct {
	model, fingerprint, policy, window string
	prefix                             int
}

func (r *WindowRecord) key() windowKey {
	return windowKey{r.Model, r.Fingerprint, r.Policy, r.Window, r.Prefix}
}

func (r *WindowRecord) complete() error {
	if r.Policy == "" || r.Window == "" || r.Tokens <= 0 {
		return errors.New("it has no policy, window or tokens")
	}
	return nil
}

// WindowStore keeps the scores of windows.
type WindowStore struct {
	resultSet[windowKey, WindowRecord, *WindowRecord]
}

// OpenWindowStore opens or creates a file of scores. path "" keeps them in memory only. Errors wrap
// ErrStore.
func OpenWindowStore(path string) (*WindowStore, error) {
	s := new(WindowStore)
	return s, s.open(path)
}
