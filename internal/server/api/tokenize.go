package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
func (s *openAI) tokenize(ctx context.Context, body []byte) (*tokenized, *apiError) {
	f, e := parseFields(body, s.tokenizes)
	if e != nil {
		return nil, e
	}
	var p params
	special, strs := true, false
	f.str("model", &p.model)
	f.boolean("return_token_strs", &strs)
	var text string
	hasText := f.str("prompt", &text) || f.str("content", &text) // llama.cpp's name
	hasMessages := f.has("messages")
	if !hasMessages {
		if !f.boolean("add_special_tokens", &special) && f.has("content") {
			special = false
			f.boolean("add_special", &special)
		}
	}
	if hasText == hasMessages {
		f.fail(invalid("prompt", "Send either 'prompt' or 'messages'."))
	}
	f.fail(s.checkModel(&p))
	if f.err != nil {
		return nil, f.err
	}
	var ids []int32
	if hasMessages {
		tools, e := s.parseTools(f)
		f.fail(e)
		c := s.parseConversation(f)
		if f.err != nil {
			return nil, f.err
		}
		ids, _, e = s.chatPrompt(ctx, c, tools.callable())
		f.fail(e)
	} else {
		ids, e = s.encode(ctx, []Segment{{Text: text}}, special, "prompt")
		f.fail(e)
	}
	if f.err != nil {
		return nil, f.err
	}
	out := &tokenized{Count: len(ids), MaxModelLen: s.cfg.MaxModelLen, Tokens: ids}
	if ids == nil {
		out.Tokens = []int32{}
	}
	if strs {
		out.TokenStrs = make([]string, len(ids))
		for i, id := range ids {
			out.TokenStrs[i] = s.tok.Token(id)
		}
	}
	return out, nil
}

// detokenize takes {"tokens"} and returns {"prompt"}.
func (s *openAI) detokenize(_ context.Context, body []byte) (*detokenized, *apiError) {
	f, e := parseFields(body, s.detokenizes)
	if e != nil {
		return nil, e
	}
	var p params
	f.str("model", &p.model)
	ids, problem := parseIDs(f.get("tokens"), s.vocab, s.detokenizes.of("tokens").Most)
	if problem != "" {
		f.fail(invalid("tokens", "'tokens' %s.", problem))
	}
	f.fail(s.checkModel(&p))
	if f.err != nil {
		return nil, f.err
	}
	return &detokenized{s.tok.Decode(ids, false)}, nil
}

// tokenizerInfo is the tokenizer's configuration with the fields that clients
// look for: bos_token, eos_token (strings or null) and chat_template.
func tokenizerInfo(config json.RawMessage, context int, tmpl ChatTemplate) (map[string]any, error) {
	info := map[string]any{}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &info); err != nil {
			return nil, fmt.Errorf("api: Config.TokenizerConfig is not a JSON object: %w", err)
		}
		if info == nil {
			return nil, fmt.Errorf("api: Config.TokenizerConfig is null, not a JSON object")
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
		info["chat_template"] = orNil(t.Source())
	}
	if t, ok := tmpl.(interface{ Sources() map[string]string }); ok {
		if all := t.Sources(); len(all) > 1 {
			info["chat_templates"] = all
		}
	}
	return info, nil
}

func (s *openAI) handleTokenizerInfo(w http.ResponseWriter, _ *http.Request) {
	s.http.writeJSON(w, http.StatusOK, s.info)
}
