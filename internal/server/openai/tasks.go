package openai

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/vectors"
)

// Endpoints that a Task can be of.
const (
	EndpointCompletions = "/v1/completions"
	EndpointChat        = "/v1/chat/completions"
	EndpointResponses   = "/v1/responses"
)

// NewTask decodes a body of an endpoint, as the endpoint itself would; the
// error is the reply to its client. "stream" has no effect.
func (s *API) NewTask(ctx context.Context, endpoint string, body []byte, o generate.TaskOptions) (*generate.Task, error) {
	if int64(len(body)) > s.Config.Limits.BodyBytes {
		return nil, &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: apierr.TypeInvalid, Code: "request_too_large",
			Message: fmt.Sprintf("The request body has %d bytes; this server accepts at most %d.", len(body), s.Config.Limits.BodyBytes)}
	}
	if e := s.Config.Limits.CheckShape(body, false); e != nil {
		return nil, e
	}
	var g *generate.Request
	var e *apierr.Error
	var q *responseRequest
	prefix, object := "cmpl-", "text_completion"
	if g, e, ok := s.vectors.Decode(ctx, endpoint, body); ok {
		if e != nil {
			return nil, e
		}
		kind, _, _ := strings.Cut(g.Head.ID, "-")
		g.Head.ID, g.Head.Created = kind+"-"+strings.TrimPrefix(o.ID, kind+"-"), o.Created
		return s.TaskOf(g, body, o), nil
	}
	switch endpoint {
	case EndpointCompletions:
		g, e = s.decodeCompletions(ctx, body)
	case EndpointChat:
		prefix, object = "chatcmpl-", "chat.completion"
		g, e = s.decodeChat(ctx, body)
	case EndpointResponses:
		prefix, object = "resp_", "response"
		var in *responseGeneration
		if in, e = s.responseOf(ctx, body, purpose{replay: o.Replay}); e == nil {
			g, q = in.Request, in.q
		}
	default:
		known := []string{EndpointCompletions, EndpointChat, EndpointResponses, vectors.EndpointEmbeddings,
			vectors.EndpointRerank, vectors.EndpointScore}
		return nil, apierr.Invalid("endpoint", "'endpoint' is %.60q; known are %s.", endpoint, strings.Join(known, ", "))
	}
	if e != nil {
		return nil, e
	}
	if g.Discard && g.PromptLogprobs < 0 {
		return nil, apierr.Invalid("max_tokens", "'max_tokens' 0 without 'logprobs' leaves nothing to compute; send it to %s.", endpoint)
	}
	if g.Session != "" {
		return nil, apierr.Invalid("session", "A job has no 'session': it must give the same answer when the session has moved on.")
	}
	if g.Context != "" {
		return nil, apierr.Invalid("context", "A job has no 'context': it must give the same answer when the context is gone.")
	}
	g.Head.ID, g.Head.Object, g.Head.Created = prefix+strings.TrimPrefix(o.ID, prefix), object, o.Created
	if q != nil {
		q.background, q.echo.Background, q.echo.Store = true, true, true // the process that runs a task keeps it
		q.echo.ID, q.echo.CreatedAt = g.Head.ID, g.Head.Created
	}
	return s.TaskOf(g, body, o), nil
}
