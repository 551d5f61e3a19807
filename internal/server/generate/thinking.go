package generate

import (
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// thinking is the state of thoughts at the end of a prompt: the answer may begin with a thought (on),
// the prompt has opened it (inside), or opened and closed it (closed).
type thinking struct {
	on, inside, closed bool
	tags               toolcall.Tags
}

// thinking is decided by the template of a request and by the end of the prompt, in which the
// answer continues.
func (d dialect) thinking(turn string) thinking {
	if !d.thinks {
		return thinking{}
	}
	inside, closed := d.tags.Thought(turn)
	return thinking{on: true, inside: inside, closed: closed, tags: d.tags}
}

// render renders a conversation. turn is the end of the prompt, in which the answer continues.
func (s *Service) render(c engine.Conversation) (prompt []engine.Segment, turn string, err error) {
	if t, ok := s.Template.(interface {
		RenderTurn(c engine.Conversation) ([]engine.Segment, string, error)
	}); ok {
		return t.RenderTurn(c)
	}
	if prompt, err = s.Template.Render(c); err == nil && len(prompt) > 0 {
		turn = prompt[len(prompt)-1].Text
	}
	return prompt, turn, err
}
