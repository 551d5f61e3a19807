package vectors

import (
	"cmp"
	"context"
	"slices"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// rerankBody is the answer of /rerank: the members that Jina, Cohere and vLLM have in common, and the
// usage of each.
type rerankBody struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Model   string         `json:"model"`
	Results []rerankResult `json:"results"`
	Usage   usage          `json:"usage"`
	Meta    rerankMeta     `json:"meta"`
}

type rerankResult struct {
	Index     int             `json:"index"`
	Relevance float32         `json:"relevance_score"`
	Document  *rerankDocument `json:"document,omitempty"`
}

type rerankDocument struct {
	Text string `json:"text"`
}

// rerankMeta is the member "meta" of Cohere's API. A search unit is a query with up to 100 documents.
type rerankMeta struct {
	Version struct {
		Version string `json:"version"`
	} `json:"api_version"`
	Billed struct {
		SearchUnits int `json:"search_units"`
	} `json:"billed_units"`
}

const documentsPerUnit = 100

// decodeRerank decodes the body of POST /rerank. returns is the default of return_documents.
func (s *API) decodeRerank(ctx context.Context, body []byte, returns bool) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.rerank)
	if e != nil {
		return nil, e
	}
	g, p, e := s.newPairs(f, "rerank-", "list")
	if e != nil {
		return nil, e
	}
	var query string
	top, most := int64(0), int64(0)
	f.Boolean("return_documents", &returns)
	f.Integer("top_n", &top)
	if f.Integer("max_tokens_per_doc", &most) {
		g.Truncate(int(most))
	}
	for _, name := range []string{"query", "documents"} {
		if f.Get(name) == nil {
			f.Fail(apierr.InvalidCode(name, "missing_required_parameter", "'%s' is required.", name))
		}
	}
	f.Text("query", &query)
	if f.Err == nil {
		p.queries, p.queryParam, p.param = []string{query}, "query", "documents"
		p.documents, e = documentsOf(f.Get("documents"))
		f.Fail(e)
	}
	if e := s.finish(ctx, f, g, p); e != nil {
		return nil, e
	}
	g.NewEncoder = NewEncoder(func(hidden [][]float32, u generate.Usage) any {
		out := rerankBody{ID: g.Head.ID, Object: "list", Model: g.Model, Usage: usageOf(u), Results: []rerankResult{}}
		out.Meta.Version.Version = "2"
		out.Meta.Billed.SearchUnits = (len(p.documents) + documentsPerUnit - 1) / documentsPerUnit
		for i, score := range s.scores(p, hidden) {
			r := rerankResult{Index: i, Relevance: score}
			if returns {
				r.Document = &rerankDocument{p.documents[i]}
			}
			out.Results = append(out.Results, r)
		}
		slices.SortStableFunc(out.Results, func(a, b rerankResult) int { return cmp.Compare(b.Relevance, a.Relevance) })
		if top > 0 {
			out.Results = out.Results[:min(int(top), len(out.Results))]
		}
		return out
	})
	return g, nil
}
