package api

import (
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// For every tokenizer, prompt and answer join to the text: in one body, in a stream, with echo, and
// token by token in the logprobs.
func TestRealTokenizers(t *testing.T) {
	for name, tok := range servertest.RealTokenizers(t) {
		t.Run(name, func(t *testing.T) {
			const prompt, rest = "Once upon", " a time, Привет 🚀 日本語 e\u0301!"
			all := servertest.EncodeReal(t, tok, prompt+rest)
			head := servertest.EncodeReal(t, tok, prompt)
			if !slices.Equal(all[:len(head)], head) {
				t.Fatal("the prompt's tokens are not a prefix; choose another text")
			}
			e := &servertest.Engine{Script: servertest.Tokens(engine.FinishLength, all[len(head):]...)}
			s, err := New(testConfig(), e, tok, servertest.Template{})
			if err != nil {
				t.Fatal(err)
			}
			srv := httptest.NewServer(s.Handler())
			defer srv.Close()
			url := srv.URL + "/v1/completions"
			for _, body := range []M{{"prompt": prompt}, {"prompt": head}} {
				body["max_tokens"], body["add_special_tokens"] = 400, false
				if got := at(t, post(t, url, body).body, "choices", 0, "text"); got != rest {
					t.Errorf("text %q, want %q", got, rest)
				}
				var text strings.Builder
				for _, ev := range stream(t, url, body) {
					if ev.json != nil {
						text.WriteString(at(t, ev.json, "choices", 0, "text").(string))
					}
				}
				if text.String() != rest {
					t.Errorf("streamed %q", text.String())
				}
				delete(body, "stream")
				body["echo"] = true
				if got := at(t, post(t, url, body).body, "choices", 0, "text"); got != prompt+rest {
					t.Errorf("echo %q", got)
				}
				body["logprobs"] = 1
				a := post(t, url, body)
				if a.status != 200 || len(at(t, a.body, "choices", 0, "logprobs", "tokens").([]any)) != len(all) {
					t.Error(a.raw)
				}
			}
		})
	}
}

// The whole way of a chat: the checkpoint's template and tokenizer.
func TestRealTemplate(t *testing.T) {
	tmpl, err := tokenizer.LoadChatTemplate(filepath.Join("..", "..", "text", "tokenizer", "testdata", "fry"))
	if err != nil {
		t.Fatal(err)
	}
	tok := servertest.RealTokenizers(t)["fry"]
	e := &servertest.Engine{Script: servertest.Tokens(engine.FinishLength, servertest.EncodeReal(t, tok, "Once upon")...)}
	cfg := testConfig()
	s, err := New(cfg, e, tok, engine.FromTemplate(tmpl))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	for _, c := range []struct {
		more M
		want string
	}{
		{nil, "<|bos|><|user|>a <|end|> b<|end|><|assistant|>c<|end|><|assistant|>"},
		{M{"add_generation_prompt": false}, "<|bos|><|user|>a <|end|> b<|end|><|assistant|>c<|end|>"},
		{M{"continue_final_message": true}, "<|bos|><|user|>a <|end|> b<|end|><|assistant|>c"},
	} {
		body := chat(c.more)
		body["messages"] = []M{{"role": "user", "content": "a <|end|> b", "name": "me"}, {"role": "assistant", "content": "c"}}
		a := post(t, srv.URL+"/v1/chat/completions", body)
		if a.status != 200 || at(t, a.body, "choices", 0, "message", "content") != "Once upon" {
			t.Fatal(a.raw)
		}
		ids := e.Last(t).Prompt
		if got := tok.Decode(ids, false); got != c.want {
			t.Errorf("prompt %q, want %q", got, c.want)
		}
		special := 0
		for _, id := range ids {
			if tok.IsSpecial(id) {
				special++
			}
		}
		if want := strings.Count(c.want, "<|") - 1; special != want { // the user's own is text
			t.Errorf("%d control tokens, want %d", special, want)
		}
	}
	if a := get(t, srv.URL+"/tokenizer_info"); !strings.Contains(at(t, a.body, "chat_template").(string), "add_generation_prompt") {
		t.Error(a.raw)
	}
	both := chat(M{"continue_final_message": true, "add_generation_prompt": true})
	checkParam(t, post(t, srv.URL+"/v1/chat/completions", both), "continue_final_message", true)
	checkParam(t, post(t, srv.URL+"/v1/chat/completions", chat(M{"chat_template_kwargs": M{"messages": 1}})), "messages", 1)
}
