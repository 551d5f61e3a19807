package generate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// kinds is a schema of parameters with one kind each.
type kinds map[string]string

func (k kinds) Allows(name, kind string) bool { return k[name] == kind }

func (k kinds) Lists(string, string) bool { return false }

// The template of a family renders a turn with a thought and a call as the model writes it. The family
// is found in the template, and the turn is parsed back. The templates here follow the documented
// format of each family, and have only parts that all its models share.
func TestTemplatesAreParsedBack(t *testing.T) {
	const (
		head = `{% for t in tools %}{{ t.function.name }} {% endfor %}`
		turn = `{% for m in messages %}{% if m.role == "user" %}USER {{ m.content }} END {% else %}BOT `
		foot = `{% endif %}{% endfor %}{% if add_generation_prompt %}BOT {% endif %}`
		call = `{% for c in m.tool_calls %}{% set f = c.function %}`
		done = `{% endfor %}`
		hm   = `<think>{{ m.reasoning_content }}</think>`
	)
	for name, c := range map[string]struct {
		source string
		family toolcall.Family
		silent bool // no thoughts in this format
	}{
		"Qwen3, Granite 4, SmolLM3": {hm + call + "<tool_call>\n" + `{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}` + "\n</tool_call>" + done, toolcall.Hermes, false},
		"Qwen3.5, Nemotron 3": {hm + call + "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ " +
			"k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>" + done, toolcall.Hermes, false},
		"GLM-4.5": {hm + call + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n" +
			"<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>" + done, toolcall.GLM, false},
		"MiniMax M2": {hm + call + "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments.items() " +
			"%}<parameter name=\"{{ k }}\">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>" + done,
			toolcall.MiniMax, false},
		"Seed-OSS": {"<seed:think>{{ m.reasoning_content }}</seed:think>" + call +
			"<seed:tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>{{ v if v is " +
			"string else v | tojson }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>" + done, toolcall.Seed, false},
		"DeepSeek V3.2": {hm + call + "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"{{ f.name }}\">\n" +
			"{% for k, v in f.arguments.items() %}<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">{{ v if " +
			"v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n</｜DSML｜function_calls>" + done, toolcall.DSML, false},
		"DeepSeek V3.1": {hm + call + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name " +
			"}}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>" + done, toolcall.DeepSeek, false},
		"Kimi K2": {hm + call + "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ f.name " +
			"}}:0<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>" + done, toolcall.Kimi, false},
		"Mistral 3": {"[THINK]{{ m.reasoning_content }}[/THINK]" + call +
			"[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}" + done, toolcall.Mistral, false},
		"Phi-4-mini":      {call + `<|tool_call|>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]<|/tool_call|>` + done, toolcall.Phi, true},
		"Nemotron Nano 2": {hm + call + `<TOOLCALL>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</TOOLCALL>` + done, toolcall.Nemotron, false},
		"Llama 3.2":       {call + `{# ipython #}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}` + done, toolcall.Llama, true},
		"Llama 4":         {call + `<|python_start|>[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})]<|python_end|>` + done, toolcall.Pythonic, true},
		"LFM2":            {call + `<|tool_call_start|>[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})]<|tool_call_end|>` + done, toolcall.Liquid, true},
		"Gemma 4":         {`<|channel>thought` + "\n{{ m.reasoning_content }}<channel|>" + call + `<|tool_call>call:{{ f.name }}{{ "{" }}{% for k, v in f.arguments.items() %}{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}{{ "}" }}<tool_call|>` + done, toolcall.Gemma, false},
		"Command A":       {"<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|><|START_ACTION|>[\n" + `{% for c in m.tool_calls %}{% set f = c.function %}    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% if not loop.last %},{% endif %}` + "\n{% endfor %}]<|END_ACTION|>", toolcall.Cohere, false},
		"Command R":       {call + "Action: ```json\n[\n" + `    {"tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}` + "\n]\n```" + done, toolcall.CommandR, true},
		"gpt-oss":         {`{# <|start|> #}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|><|start|>assistant` + call + `<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments | tojson }}<|call|>` + done, toolcall.Harmony, false},
	} {
		t.Run(name, func(t *testing.T) {
			source := head + turn + c.source + foot
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o600); err != nil {
				t.Fatal(err)
			}
			template, err := tokenizer.LoadChatTemplate(dir)
			if err != nil {
				t.Fatal(err)
			}
			var messages []tokenizer.Message
			if err := json.Unmarshal([]byte(`[{"role":"user","content":"Hi"},{"role":"assistant","reasoning_content":"hm, 2 < 3","content":"","tool_calls":[{"type":"function","function":{"name":"get_weather","arguments":{"city":"Os \"lo\"","days":3,"exact":true}}}]}]`), &messages); err != nil {
				t.Fatal(err)
			}
			tools := json.RawMessage(`[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}]`)
			prompt, err := template.Render(messages[:1], tokenizer.RenderOptions{AddGenerationPrompt: true, Tools: tools})
			if err != nil {
				t.Fatal(err)
			}
			all, err := template.Render(messages, tokenizer.RenderOptions{Tools: tools})
			if err != nil {
				t.Fatal(err)
			}
			answer, ok := strings.CutPrefix(all.String(), prompt.String())
			d := dialectOf(source)
			if !ok || d.family != c.family || d.thinks == c.silent && c.family != toolcall.Harmony {
				t.Fatalf("family %q, thoughts %v; %q after %q", d.family, d.thinks, answer, prompt.String())
			}
			schema := toolcall.Schema(kinds{"city": "string", "days": "integer", "exact": "boolean"})
			if c.family == toolcall.DSML { // which names the content that is not text
				schema = nil
			}
			p := &parts{parser: toolcall.New(d.family, map[string]toolcall.Tool{"get_weather": {Schema: schema}}),
				id: func(int) string { return "" }}
			if d.thinks {
				p.think = toolcall.NewThoughtParser(d.tags, false, false)
			}
			var got Delta
			for len(answer) > 0 {
				n := min(3, len(answer))
				one := Delta{Text: answer[:n]}
				if answer = answer[n:]; answer == "" {
					one.Finish = "stop"
				}
				p.take(&one)
				got.Add(one)
				got.Text += one.Text
			}
			var args any
			if len(got.Calls) != 1 || got.Calls[0].Name != "get_weather" || json.Unmarshal(got.Calls[0].Arguments, &args) != nil ||
				!reflect.DeepEqual(args, map[string]any{"city": `Os "lo"`, "days": 3.0, "exact": true}) {
				t.Errorf("calls %+v", got.Calls)
			}
			if thought := strings.TrimSpace(got.Thought); thought != "hm, 2 < 3" && !c.silent || strings.TrimSpace(got.Text) != "" {
				t.Errorf("thought %q, text %q", thought, got.Text)
			}
		})
	}
}
