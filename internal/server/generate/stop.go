package generate

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// answerSpans separates an answer from thoughts, in which Anthropic's stop sequences are not searched; nil: stop
// strings are searched everywhere.
func (s *Service) answerSpans(g *Request) *toolcall.Spans {
	switch {
	case !g.StopsInAnswer || len(g.stop) == 0:
	case s.dialect(g.Tools).family == toolcall.Harmony:
		return toolcall.SpansOfChannels(g.callHead)
	case g.separatesThoughts():
		return toolcall.SpansOfThought(toolcall.NewThoughtParser(g.thinking.tags, g.thinking.inside, false))
	}
	return nil
}

// stopper finds stop strings in text that comes in pieces. The result does not
// depend on where the pieces are cut: the stop string that is complete first
// wins, of those complete at the same byte the longest. Text that may still
// become a stop string is held back.
type stopper struct {
	stops []string
	held  string // its every suffix that matters is a proper prefix of a stop
}

// push returns the text that no stop string can still include, and the stop string if one is complete.
// The text after it is dropped.
func (s *stopper) push(text string) (out, hit string) {
	if len(s.stops) == 0 {
		return text, ""
	}
	buf := s.held + text
	s.held = ""
	end, at := len(buf)+1, 0
	for _, stop := range s.stops {
		i := strings.Index(buf, stop)
		if i < 0 {
			continue
		}
		if e := i + len(stop); e < end || e == end && i < at {
			end, at, hit = e, i, stop
		}
	}
	if hit != "" {
		return buf[:at], hit
	}
	keep := s.partial(buf)
	s.held = buf[keep:]
	return buf[:keep], ""
}

// flush returns the text held back: nothing more comes.
func (s *stopper) flush() string {
	t := s.held
	s.held = ""
	return t
}

// partial returns the start of the longest suffix of buf that begins a stop string.
// Stops are valid UTF-8, so it never lies inside a rune.
func (s *stopper) partial(buf string) int {
	longest := 0
	for _, stop := range s.stops {
		longest = max(longest, len(stop)-1)
	}
	for i := max(0, len(buf)-longest); i < len(buf); i++ {
		for _, stop := range s.stops {
			if strings.HasPrefix(stop, buf[i:]) {
				return i
			}
		}
	}
	return len(buf)
}
