package openai

import (
	"encoding/json"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// chunkBody is one chunk of a stream of either endpoint.
type chunkBody struct {
	generate.Head
	Choices []any             `json:"choices"`
	Usage   json.RawMessage   `json:"usage,omitempty"`   // null on all but the last with include_usage
	Figures *generate.Figures `json:"metrics,omitempty"` // on that
}

// nullUsage is sent on the chunks before the one with the usage.
var nullUsage = json.RawMessage("null")

// encoder writes the chunks of a chat or a completion, or one body.
type encoder struct {
	r      *generate.Run
	out    httpserver.SSE
	joined joinedChoices                                          // of a body
	choice func(d generate.Delta) any                             // as a chunk has it
	whole  func(choices []generate.Delta, use generate.Usage) any // the body
}

func newEncoder(r *generate.Run, out *httpserver.Stream, choice func(generate.Delta) any,
	whole func([]generate.Delta, generate.Usage) any) *encoder {
	n := len(r.Prompts) * r.N
	return &encoder{r: r, out: httpserver.NewSSE(out), choice: choice, whole: whole,
		joined: joinedChoices{make([]generate.Delta, n), make([]strings.Builder, n)}}
}

func (e *encoder) Delta(d generate.Delta) {
	if e.out.Stream == nil {
		e.joined.add(d)
		return
	}
	c := chunkBody{Head: e.r.Head, Choices: []any{e.choice(d)}}
	switch {
	case e.r.EachUsage:
		c.Usage = jsonbody.MustJSON(e.r.Usage())
	case e.r.IncludeUsage:
		c.Usage = nullUsage
	}
	e.out.Data(c)
}

func (e *encoder) KeepAlive() { e.out.Comment("keep-alive") }

func (e *encoder) End() {
	if e.r.IncludeUsage && e.out.Stream != nil {
		u := e.r.Usage()
		e.out.Data(chunkBody{Head: e.r.Head, Choices: []any{}, Usage: jsonbody.MustJSON(u), Figures: u.Figures})
	}
	e.out.Done()
}

func (e *encoder) Fail(failure *apierr.Error) { e.out.Data(failure) }

func (e *encoder) Body() any {
	return e.whole(e.r.Best(e.joined.choices()), e.r.Usage())
}

// joinedChoices are the deltas of each choice, joined to one.
type joinedChoices struct {
	deltas []generate.Delta
	texts  []strings.Builder
}

func (j *joinedChoices) add(d generate.Delta) {
	w := &j.deltas[d.Index]
	j.texts[d.Index].WriteString(d.Text)
	w.Add(d)
	if d.Finish != "" {
		w.Finish, w.Reason = d.Finish, d.Reason
	}
}

func (j *joinedChoices) choices() []generate.Delta {
	for i := range j.deltas {
		j.deltas[i].Index, j.deltas[i].Text = i, j.texts[i].String()
	}
	return j.deltas
}
