package cluster

import (
	"maps"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// thinkTemplate returns a template that renders thoughts of the history and starts the answer with
// begin.
func thinkTemplate(begin string) string {
	return "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n" +
		"{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}" +
		"{% if not loop.last or add_generation_prompt %}<|im_end|>\n" +
		"{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n" + begin + "{% endif %}"
}

// Thought tags are recognised as text and as control tokens, whether the template or the model
// opens the thought.
func TestParrotThoughts(t *testing.T) {
	type M = map[string]any
	plain, opens, closes := thinkTemplate(""), thinkTemplate("<think>\n"), thinkTemplate("<think>\n\n</think>\n\n")
	prefill := M{"continue_final_message": true, "add_generation_prompt": false,
		"messages": []M{{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\nhalf"}}}
	quoted := M{"messages": []M{{"role": "user", "content": "what does <think> mean?"}}}
	for _, c := range []struct {
		name   string
		script parrot.Script
		more   M
		want   reply
		whole  bool // only for non-streaming answers: a stream has sent the text before the tag arrives
	}{
		{"opened", parrot.Script{Text: "plan</think>\n\nhey", Template: opens}, nil, reply{"hey", "plan", "", "stop", nil}, false},
		{"repeated", parrot.Script{Text: "<think>\nplan</think>\n\nhey", Template: opens}, nil, reply{"hey", "plan", "", "stop", nil}, false},
		{"own tags", parrot.Script{Text: "<think>\nplan\n</think>\n\nhey", Template: plain}, nil, reply{"hey", "plan", "", "stop", nil}, false},
		{"special close", parrot.Script{Text: "plan</think>\n\nhey", Template: opens, Special: []string{"</think>"}},
			nil, reply{"hey", "plan", "", "stop", nil}, false},
		{"special tags", parrot.Script{Text: "<think>\nplan</think>\n\nhi there", Template: plain, Special: []string{"<think>", "</think>"}},
			nil, reply{"hi there", "plan", "", "stop", nil}, false},
		{"special tags shown", parrot.Script{Text: "<think>\nplan</think>\n\nhi there", Template: plain,
			Special: []string{"<think>", "</think>"}}, M{"skip_special_tokens": false}, reply{"hi there", "plan", "", "stop", nil}, false},
		{"special close without a thought", parrot.Script{Text: "one two</think> three", Template: closes, Special: []string{"</think>"}},
			nil, reply{"one two three", "", "", "stop", nil}, false},
		{"prefilled", parrot.Script{Text: "ly done</think>\n\nhey", Template: plain}, prefill, reply{"hey", "ly done", "", "stop", nil}, false},
		{"closed by the template", parrot.Script{Text: "see </think> here", Template: closes}, nil,
			reply{"see </think> here", "", "", "stop", nil}, false},
		{"quoted by the user", parrot.Script{Text: "It opens a thought.", Template: plain}, quoted,
			reply{"It opens a thought.", "", "", "stop", nil}, false},
		{"close alone", parrot.Script{Text: "plan</think>\n\nhey", Template: plain}, nil, reply{"hey", "plan", "", "stop", nil}, true},
		{"close alone, template without an opening tag",
			parrot.Script{Text: "plan</think>\n\nhey", Template: "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}"},
			nil, reply{"hey", "plan", "", "stop", nil}, false},
	} {
		h := serveParrot(t, c.script, nil)
		for _, stream := range []bool{false, true} {
			more := M{}
			maps.Copy(more, c.more)
			if got := askChat(t, h, more, stream); got != c.want && !(c.whole && stream) {
				t.Errorf("%s, stream: %v: %+v\nwant %+v", c.name, stream, got, c.want)
			}
		}
	}
}
