package jobs

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// permanent lists the engine codes for which a retry cannot help.
var permanent = map[string]bool{"invalid_request": true, "context_length_exceeded": true, "sampling_failed": true, "replay_diverged": true}

// unavailable lists the engine codes that mean that no cluster was available.
var unavailable = map[string]bool{"no_cluster": true, "draining": true}

// EngineFailure classifies an engine error by its code.
func EngineFailure(code, message string) Failure {
	return Failure{Code: code, Message: message, Permanent: permanent[code], Forgiven: unavailable[code]}
}

// Superseded reports whether an append was refused because the job has ended or another process
// continues it. The attempt then ends without writing a record.
func Superseded(err error) bool {
	return errors.Is(err, ErrFinal) || errors.Is(err, ErrFenced) || errors.Is(err, journal.ErrConflict)
}

// Progress counts the events of one choice that are in the log. An attempt continues from the progress in
// the log, whichever process wrote it.
type Progress struct {
	Emitted []int32
	Scored  bool // Emitted includes the prompt's log-probabilities
}

func (c *Progress) Take(e engine.Event) {
	if e.Token != engine.NoToken {
		c.Emitted = append(c.Emitted, e.Token)
	}
	c.Scored = c.Scored || e.PromptLogprobs != nil
}
