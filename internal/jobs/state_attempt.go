package jobs

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/api"
)

// permanent codes of the engine: trying again cannot help.
var permanent = map[string]bool{"invalid_request": true, "context_length_exceeded": true, "sampling_failed": true, "replay_diverged": true}

// away are codes that say that there was no cluster.
var away = map[string]bool{"no_cluster": true, "draining": true}

// EngineFailure is what it means for an attempt that the engine gave a code.
func EngineFailure(code, message string) Failure {
	return Failure{Code: code, Message: message, Permanent: permanent[code], Forgiven: away[code]}
}

// Superseded: an append was refused because somebody else goes on with the job, or it
// has ended. The attempt ends without another word in the journal.
func Superseded(err error) bool {
	return errors.Is(err, ErrFinal) || errors.Is(err, ErrFenced) || errors.Is(err, journal.ErrConflict)
}

// Progress is how far the events of one choice go. An attempt starts from that of the
// log, whoever wrote it.
type Progress struct {
	Emitted []int32
	Scored  bool // prompt logprobs are among them
}

func (c *Progress) Take(e api.Event) {
	if e.Token != api.NoToken {
		c.Emitted = append(c.Emitted, e.Token)
	}
	c.Scored = c.Scored || e.PromptLogprobs != nil
}
