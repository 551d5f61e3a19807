package cluster_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// toolStreams returns streams in which a model makes two function calls each.
func toolStreams() (reqs []request, want []string) {
	function := func(name, about string, properties string, required ...string) json.RawMessage {
		need, _ := json.Marshal(required)
		return json.RawMessage(fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q,"parameters":{"type":"object","properties":%s,"required":%s}}}`, name, about, properties, need))
	}
	tools := []json.RawMessage{
		function("get_weather", "The weather in a city.", `{"city":{"type":"string"}}`, "city"),
		function("send_message", "Sends a message to somebody.", `{"to":{"type":"string"},"text":{"type":"string"}}`, "to", "text"),
	}
	for i, city := range []string{"Oslo", "Rome", "Paris", "Tokyo", "Lima", "Reykjavik"} {
		b := map[string]any{"messages": []any{map[string]any{"role": "user",
			"content": fmt.Sprintf("What is the weather in %s? And Send \"yellow harbor %d\" to Nora.", city, i)}},
			"tools": tools, "temperature": 0, "stream": true, "max_tokens": 160, "cache": false,
			"stream_options": map[string]any{"include_usage": true}}
		if i%2 == 0 {
			b["speculate"] = "off"
		}
		says := fmt.Sprintf(`get_weather({"city": %q}) send_message({"to": "Nora", "text": "yellow harbor %d"})`, city, i)
		if i%3 == 0 { // the policy keeps too few tokens of the question; only the bits are compared
			says, b["kv_policy"] = "", "snapstream:sink=4,recent=64,topk=128,obs=16,pool=7"
		}
		reqs = append(reqs, request{"calls of " + city, "/v1/chat/completions", b})
		want = append(want, says)
	}
	return reqs, want
}

// callIDs matches call ids, which are random.
var callIDs = regexp.MustCompile(`"id":"call_[a-z0-9]+"`)

// called joins the calls of a stream's events.
func called(t *testing.T, text string) string {
	t.Helper()
	var calls []string
	for line := range strings.Lines(text) {
		var e struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						Index    int
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		if json.Unmarshal([]byte(line), &e) != nil || len(e.Choices) == 0 {
			continue
		}
		for _, c := range e.Choices[0].Delta.Calls {
			if c.Index == len(calls) {
				calls = append(calls, c.Function.Name+"(")
			}
			calls[c.Index] += c.Function.Arguments
		}
	}
	for i := range calls {
		calls[i] += ")"
	}
	return strings.Join(calls, " ")
}

// TestToolCalls: the bundled adapter's model calls functions with the requested arguments. The
// streamed calls are identical, byte by byte, on one node, on four, and when one of four is killed,
// with drafts and without.
func TestToolCalls(t *testing.T) {
	parallel(t)
	reqs, wanted := toolStreams()
	cache := []string{"XDG_CACHE_HOME=" + t.TempDir()}
	adapter := []string{"--model", "../../models/fry-tools"}
	plain := func(texts []string) []string {
		for i, s := range texts {
			texts[i] = callIDs.ReplaceAllString(s, `"id":""`)
		}
		return texts
	}
	one, _ := start(t, config{nodes: 1, args: adapter, env: cache}).open(reqs).wait(t)
	one = plain(one)
	for i, text := range one {
		if got := called(t, text); wanted[i] != "" && got != wanted[i] {
			t.Errorf("%s: %s, want %s", reqs[i].name, got, wanted[i])
		}
	}
	c := start(t, config{nodes: 4, args: adapter, env: cache})
	whole, _ := c.open(reqs).wait(t)
	same(t, "four nodes", reqs, one, plain(whole))
	f := c.open(reqs)
	f.reach(t, 12)
	c.signal("node-2", syscall.SIGKILL)
	got, stall := f.wait(t)
	t.Logf("kill -9: longest silence %.2f s", stall.Seconds())
	same(t, "kill -9", reqs, one, plain(got))
	c.waitNodes(3, recoverLimit)
	if s := c.state(); s.Recoveries == 0 {
		t.Error("no step of the cluster met the death of its node")
	}
}
