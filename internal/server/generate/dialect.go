package generate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// dialect is how a model writes calls and thoughts, by the template that renders a request.
type dialect struct {
	family toolcall.Family
	tags   toolcall.Tags // of thoughts
	thinks bool          // answers may begin with thoughts
	late   bool          // and such a thought may end without having begun
}

func dialectOf(source string) dialect {
	d := dialect{family: toolcall.Detect(source)}
	d.tags, d.thinks = toolcall.TagsOf(source)
	d.late = d.thinks && !strings.Contains(source, d.tags.Open)
	return d
}

// dialect returns the form of answers to a request with these tools, or with none.
func (s *Service) dialect(t *Toolset) dialect {
	if t == nil {
		return s.plain
	}
	return s.tooled
}

// readTemplate finds out how the model writes.
func (s *Service) readTemplate() error {
	if t, ok := s.Template.(interface{ Source() string }); ok {
		s.plain = dialectOf(t.Source())
		s.tooled = s.plain
	}
	if t, ok := s.Template.(interface{ ToolSource() string }); ok {
		s.tooled = dialectOf(t.ToolSource())
	}
	if name := toolcall.Family(s.Config.ToolParser); name != "" {
		if !slices.Contains(toolcall.Families, name) {
			return fmt.Errorf("generate: the tool parser %q is not known; known are %v", name, toolcall.Families)
		}
		s.plain.family, s.tooled.family = name, name
	}
	s.family, s.Thinks = s.tooled.family, s.plain.thinks || s.tooled.thinks || s.plain.family == toolcall.Harmony
	return nil
}
