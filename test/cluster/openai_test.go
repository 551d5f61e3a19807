package cluster_test

import (
	"context"
	"errors"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// openaiGo uses the official client, which validates the form of streams and errors.
func (s *system) openaiGo() {
	c := openai.NewClient(option.WithBaseURL(s.base+"/v1"), option.WithAPIKey("any"),
		option.WithRequestTimeout(requestLimit), option.WithHTTPClient(s.http))
	ctx := context.Background()
	models, err := c.Models.List(ctx)
	if err != nil || len(models.Data) != 1 {
		s.t.Fatalf("%v %+v", err, models)
	}
	model := models.Data[0].ID
	p := openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(model),
		Prompt:    openai.CompletionNewParamsPromptUnion{OfString: openai.String("func add(")},
		MaxTokens: openai.Int(12), Temperature: openai.Float(0), Logprobs: openai.Int(1)}
	whole, err := c.Completions.New(ctx, p)
	if err != nil || len(whole.Choices) != 1 || whole.Choices[0].Text == "" || len(whole.Choices[0].Logprobs.Tokens) == 0 {
		s.t.Fatalf("%v %+v", err, whole)
	}
	st := c.Completions.NewStreaming(ctx, p)
	text := ""
	for st.Next() {
		for _, ch := range st.Current().Choices {
			text += ch.Text
		}
	}
	if st.Err() != nil || text != whole.Choices[0].Text {
		s.t.Errorf("%v: streamed %q, whole %q", st.Err(), text, whole.Choices[0].Text)
	}
	_, err = c.Completions.New(ctx, openai.CompletionNewParams{Model: "none", Prompt: p.Prompt})
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusNotFound || e.Code != "model_not_found" {
		s.t.Errorf("%v", err)
	}
	if s.chats() {
		s.openaiChat(c, model)
	}
}

func (s *system) openaiChat(c openai.Client, model string) {
	ctx := context.Background()
	p := openai.ChatCompletionNewParams{Model: model, Temperature: openai.Float(0),
		MaxCompletionTokens: openai.Int(16), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."),
			openai.UserMessage("Write a Go function that adds two ints.")}}
	whole, err := c.Chat.Completions.New(ctx, p)
	if err != nil || whole.Choices[0].Message.Content == "" || len(whole.Choices[0].Logprobs.Content) == 0 {
		s.t.Fatalf("%v %+v", err, whole)
	}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	st := c.Chat.Completions.NewStreaming(ctx, p)
	var acc openai.ChatCompletionAccumulator
	for st.Next() {
		if !acc.AddChunk(st.Current()) {
			s.t.Fatalf("the accumulator refused %s", st.Current().RawJSON())
		}
	}
	if st.Err() != nil || len(acc.Choices) != 1 || acc.Choices[0].Message.Content != whole.Choices[0].Message.Content ||
		acc.Usage.CompletionTokens != whole.Usage.CompletionTokens {
		s.t.Errorf("%v: %+v, whole %+v", st.Err(), acc.Choices, whole.Choices)
	}
}
