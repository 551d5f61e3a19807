package api

import (
	"context"
	"net/http"
	"strings"
)

// Endpoints that a Task can be of.
const (
	EndpointCompletions = "/v1/completions"
	EndpointChat        = "/v1/chat/completions"
	EndpointResponses   = "/v1/responses"
)

// NewTask decodes a body of an endpoint, as the endpoint itself would; the
// error is what its client would get. "stream" has no effect.
func (s *openAI) NewTask(ctx context.Context, endpoint string, body []byte, o TaskOptions) (*Task, error) {
	if int64(len(body)) > s.cfg.Limits.BodyBytes {
		return nil, &apiError{status: http.StatusRequestEntityTooLarge, typ: typeInvalid, code: "request_too_large", message: "The request body is larger than this server accepts."}
	}
	if e := s.cfg.Limits.checkShape(body, false); e != nil {
		return nil, e
	}
	var g *generation
	var e *apiError
	var q *responseRequest
	prefix, object := "cmpl-", "text_completion"
	switch endpoint {
	case EndpointCompletions:
		g, e = s.decodeCompletions(ctx, body)
	case EndpointChat:
		prefix, object = "chatcmpl-", "chat.completion"
		g, e = s.decodeChat(ctx, body)
	case EndpointResponses:
		prefix, object = "resp_", "response"
		var in *responseGeneration
		if in, e = s.decodeResponses(ctx, body); e == nil {
			g, q = in.generation, in.q
		}
	default:
		return nil, invalid("endpoint", "'endpoint' is %.60q; known are %s, %s and %s.", endpoint, EndpointCompletions, EndpointChat, EndpointResponses)
	}
	if e != nil {
		return nil, e
	}
	if g.discard && g.promptLogprobs < 0 {
		return nil, invalid("max_tokens", "'max_tokens' 0 without 'logprobs' leaves nothing to compute; send it to %s.", endpoint)
	}
	if g.context != "" {
		return nil, invalid("context", "A job has no 'context': it must give the same answer when the context is gone.")
	}
	g.head.ID, g.head.Object, g.head.Created = prefix+strings.TrimPrefix(o.ID, prefix), object, o.Created
	if q != nil {
		q.background, q.echo.Background, q.echo.Store = true, true, true // a task is kept by whoever runs it
		q.echo.ID, q.echo.CreatedAt = g.head.ID, g.head.Created
	}
	return s.newTask(g, body, o), nil
}
