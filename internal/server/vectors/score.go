package vectors

import (
	"context"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// scoreBody is vLLM's answer of /score.
type scoreBody struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	Model   string      `json:"model"`
	Data    []scoreItem `json:"data"`
	Usage   usage       `json:"usage"`
}

type scoreItem struct {
	Index  int     `json:"index"`
	Object string  `json:"object"`
	Score  float32 `json:"score"`
}

// decodeScore decodes the body of POST /score: one text with every text of a second list, or two
// lists of the same length.
func (s *API) decodeScore(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.score)
	if e != nil {
		return nil, e
	}
	g, p, e := s.newPairs(f, "score-", "list")
	if e != nil {
		return nil, e
	}
	read := func(param *string, names ...string) (list []string) { // the newer name is the last and wins
		for _, name := range names {
			if v := f.Get(name); v != nil {
				list, e = texts(name, v)
				f.Fail(e)
				*param = name
			}
		}
		if list == nil {
			f.Fail(apierr.InvalidCode(names[0], "missing_required_parameter", "'%s' is required.", names[0]))
		}
		return list
	}
	p.queries = read(&p.queryParam, "text_1", "queries")
	p.documents = read(&p.param, "text_2", "documents")
	if n := len(p.queries); f.Err == nil && n != 1 && n != len(p.documents) {
		f.Fail(apierr.Invalid(p.param, "%d texts cannot be paired with %d: the first list must have 1 text, or as many as the second.",
			n, len(p.documents)))
	}
	if e := s.finish(ctx, f, g, p); e != nil {
		return nil, e
	}
	g.NewEncoder = NewEncoder(func(hidden [][]float32, u generate.Usage) any {
		out := scoreBody{ID: g.Head.ID, Object: "list", Created: g.Head.Created, Model: g.Model, Usage: usageOf(u)}
		for i, score := range s.scores(p, hidden) {
			out.Data = append(out.Data, scoreItem{Index: i, Object: "score", Score: score})
		}
		return out
	})
	return g, nil
}
