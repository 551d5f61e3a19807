package jobs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/openai"
)

func TestPromptPreview(t *testing.T) {
	long := strings.Repeat("é", 200)
	for body, want := range map[string]string{
		`{"prompt":"Hello,\n\n  you\tthere "}`: "Hello, you there",
		`{"prompt":["first","second"]}`:        "first",
		`{"prompt":[1,2,3]}`:                   "",
		`{"prompt":[[1],[2]]}`:                 "",
		`{"prompt":""}`:                        "",
		`{"prompt":[]}`:                        "",
		`{"prompt":"` + long + `"}`:            strings.Repeat("é", previewRunes) + "…",
		`{"prompt":"\u001b[31mred\u0000"}`:     "[31mred",
		`{"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"},{"role":"user","content":"three"}]}`:    "three",
		`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"What is this?"}]}]}`: "What is this?",
		`{"messages":[{"role":"assistant","content":null}]}`:                                                                       "",
		`{"input":"Count."}`: "Count.",
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"Go."}]}]}`: "Go.",
		`{"input":[{"type":"function_call","name":"f","arguments":"{}"}]}`:           "",
		`{"prompt":"aaa","Prompt":"ZZZ"}`:                                            "aaa",
		`{"Prompt":"ZZZ"}`:                                                           "",
		`{"messages":[{"role":"user","content":"aaa","Content":"ZZZ"},{"role":"system","Role":"user","content":"ZZZ"}]}`: "aaa",
		`{"messages":[{"role":"user","content":[{"type":"text","text":"aaa","Text":"ZZZ"}]}],"Messages":[]}`:             "aaa",
		`{"prompt":"ZZZ","messages":[{"role":"user","content":"aaa"}]}`:                                                  "aaa",
		`{"messages":7}`: "", `{}`: "", `[]`: "", `"x"`: "",
	} {
		endpoint := openai.EndpointCompletions
		switch {
		case strings.Contains(body, `"messages"`):
			endpoint = openai.EndpointChat
		case strings.Contains(body, `"input"`):
			endpoint = openai.EndpointResponses
		}
		if got := promptPreview(endpoint, json.RawMessage(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
