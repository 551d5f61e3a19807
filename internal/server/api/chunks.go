package api

import (
	"encoding/json"
	"strings"
)

// chunkBody is one chunk of a stream of either endpoint.
type chunkBody struct {
	head
	Choices []any           `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`   // null on all but the last with include_usage
	Figures *figures        `json:"metrics,omitempty"` // on that
}

// nullUsage is sent on the chunks before the one with the usage.
var nullUsage = json.RawMessage("null")

// openAIEncoder writes the chunks of a chat or a completion, or one body.
type openAIEncoder struct {
	r      *run
	out    sse
	joined joinedChoices                        // of a body
	choice func(d delta) any                    // as a chunk has it
	whole  func(choices []delta, use usage) any // the body
}

func newOpenAIEncoder(r *run, out *Stream, choice func(delta) any, whole func([]delta, usage) any) *openAIEncoder {
	n := len(r.prompts) * r.n
	return &openAIEncoder{r: r, out: newSSE(out), choice: choice, whole: whole, joined: joinedChoices{make([]delta, n), make([]strings.Builder, n)}}
}

func (e *openAIEncoder) delta(d delta) {
	if e.out.Stream == nil {
		e.joined.add(d)
		return
	}
	c := chunkBody{head: e.r.head, Choices: []any{e.choice(d)}}
	switch {
	case e.r.eachUsage:
		c.Usage = mustJSON(e.r.usage())
	case e.r.includeUsage:
		c.Usage = nullUsage
	}
	e.out.data(c)
}

func (e *openAIEncoder) keepAlive() { e.out.comment("keep-alive") }

func (e *openAIEncoder) end() {
	if e.r.includeUsage && e.out.Stream != nil {
		u := e.r.usage()
		e.out.data(chunkBody{head: e.r.head, Choices: []any{}, Usage: mustJSON(u), Figures: u.figures})
	}
	e.out.done()
}

func (e *openAIEncoder) fail(failure *apiError) { e.out.data(failure) }

func (e *openAIEncoder) body() any {
	return e.whole(e.r.best(e.joined.choices()), e.r.usage())
}

// joinedChoices are the deltas of each choice, joined to one.
type joinedChoices struct {
	deltas []delta
	texts  []strings.Builder
}

func (j *joinedChoices) add(d delta) {
	w := &j.deltas[d.index]
	j.texts[d.index].WriteString(d.text)
	w.add(d)
	if d.finish != "" {
		w.finish, w.reason = d.finish, d.reason
	}
}

func (j *joinedChoices) choices() []delta {
	for i := range j.deltas {
		j.deltas[i].index, j.deltas[i].text = i, j.texts[i].String()
	}
	return j.deltas
}
