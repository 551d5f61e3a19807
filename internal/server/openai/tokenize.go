package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs"` // null unless asked for
}

type detokenized struct {
	Prompt string `json:"prompt"`
}

// tokenize takes {"prompt"} or {"messages"} and returns token ids.
func (s *API) tokenize(ctx context.Context, body []byte) (*tokenized, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.tokenizes)
	if e != nil {
		return nil, e
	}
	var p generate.Params
	special, strs := true, false
	f.Text("model", &p.Model)
	f.Boolean("return_token_strs", &strs)
	var text string
	hasText := f.Text("prompt", &text) || f.Text("content", &text) // llama.cpp's name
	hasMessages := f.Has("messages")
	if !hasMessages {
		if !f.Boolean("add_special_tokens", &special) && f.Has("content") {
			special = false
			f.Boolean("add_special", &special)
		}
	}
	if hasText == hasMessages {
		f.Fail(apierr.Invalid("prompt", "Send either 'prompt' or 'messages'."))
	}
	f.Fail(s.CheckModel(&p))
	if f.Err != nil {
		return nil, f.Err
	}
	var ids []int32
	if hasMessages {
		tools, e := s.chatTools(f)
		f.Fail(e)
		c := s.ParseConversation(f)
		if f.Err != nil {
			return nil, f.Err
		}
		ids, _, e = s.ChatPrompt(ctx, c, tools.Callable())
		f.Fail(e)
	} else {
		ids, e = s.Encode(ctx, []engine.Segment{{Text: text}}, special, "prompt")
		f.Fail(e)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	out := &tokenized{Count: len(ids), MaxModelLen: s.Config.MaxModelLen, Tokens: ids}
	if ids == nil {
		out.Tokens = []int32{}
	}
	if strs {
		out.TokenStrs = make([]string, len(ids))
		for i, id := range ids {
			out.TokenStrs[i] = s.Tokenizer.Token(id)
		}
	}
	return out, nil
}

// detokenize takes {"tokens"} and returns {"prompt"}.
func (s *API) detokenize(_ context.Context, body []byte) (*detokenized, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.detokenizes)
	if e != nil {
		return nil, e
	}
	var p generate.Params
	f.Text("model", &p.Model)
	ids, problem := jsonbody.ParseIDs(f.Get("tokens"), s.VocabSize, s.detokenizes.Of("tokens").MaxLen)
	if problem != "" {
		f.Fail(apierr.Invalid("tokens", "'tokens' %s.", problem))
	}
	f.Fail(s.CheckModel(&p))
	if f.Err != nil {
		return nil, f.Err
	}
	return &detokenized{s.Tokenizer.Decode(ids, false)}, nil
}

// TokenizerInfo returns the tokenizer's configuration with the fields that clients
// look for: bos_token, eos_token (strings or null) and chat_template.
func TokenizerInfo(config json.RawMessage, context int, tmpl engine.ChatTemplate) (map[string]any, error) {
	info := map[string]any{}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &info); err != nil {
			return nil, fmt.Errorf("openai: tokenizer_config.json is not a JSON object: %w", err)
		}
		if info == nil {
			return nil, errors.New("openai: tokenizer_config.json is null: want a JSON object")
		}
	}
	for _, k := range []string{"bos_token", "eos_token", "pad_token", "unk_token"} {
		if t, ok := info[k].(map[string]any); ok { // the long form of an added token
			info[k] = t["content"]
		}
	}
	for _, k := range []string{"bos_token", "eos_token", "chat_template", "tokenizer_class"} {
		if _, ok := info[k]; !ok {
			info[k] = nil
		}
	}
	info["max_model_len"] = context
	if t, ok := tmpl.(interface{ Source() string }); ok {
		info["chat_template"] = jsonbody.OrNil(t.Source())
	}
	if t, ok := tmpl.(interface{ Sources() map[string]string }); ok {
		if all := t.Sources(); len(all) > 1 {
			info["chat_templates"] = all
		}
	}
	return info, nil
}

// handleTokenizerInfo answers for the model of ?model=, by default the first.
func (s *API) handleTokenizerInfo(w http.ResponseWriter, r *http.Request) {
	p := generate.Params{Model: r.URL.Query().Get("model")}
	of := s.peer(p.Model)
	if e := of.CheckModel(&p); e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	s.HTTP.WriteJSON(w, http.StatusOK, of.info)
}
