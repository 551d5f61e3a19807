package cluster_test

import (
	"fmt"
	"maps"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestChaosSpeculation kills nodes while streams decode with drafts, from text and from a draft model
// (here the model itself). Rejected drafts leave no rows on owners, on replicas and in rebuilt caches.
// Tokens and logprobs equal a run without drafts.
func TestChaosSpeculation(t *testing.T) {
	testlevel.NeedLong(t)
	reqs := streaming(len(load()), 240) // drafts shorten the runs
	fits := maps.Clone(reqs[0].body)
	fits["structured_outputs"] = map[string]any{"regex": "([a-f]{3}[0-9]{2} ){120}"}
	reqs = append(reqs, request{"a stream that fits a regular expression", reqs[0].path, fits})
	for i, policy := range []string{"tova:size=40", "knorm:sink=4,recent=20,topk=20"} {
		b := maps.Clone(reqs[3*i].body)
		b["kv_policy"], b["repetition_penalty"], b["stop"] = policy, 1.1, []string{"never said \u0001"}
		delete(b, "guided_json")
		reqs = append(reqs, request{"a stream with a stop string (" + policy + ")", reqs[0].path, b})
	}
	whole := []request{{"three choices", reqs[0].path,
		map[string]any{"prompt": reqs[4].body["prompt"], "n": 3, "max_tokens": 200, "ignore_eos": true, "temperature": 0.9, "seed": 8,
			"frequency_penalty": 0.2, "stop": []string{"ing", "\n\n\n"}, "include_stop_str_in_output": true,
			"min_tokens": 60, "logprobs": 2, "return_tokens_as_token_ids": true}}}
	c := up(t, 4, "--replicas", "1", "--speculate", "off", "--draft", "../../models/fry")
	want, _ := c.undisturbed(t, reqs)
	wantWhole := c.send(t, whole, 1)
	whole[0].body["speculate"] = "suffix:5"
	if d := c.state().Drafts; d != nil {
		t.Fatalf("there were drafts although none were requested: %+v", d)
	}
	for i := range reqs {
		reqs[i].body = maps.Clone(reqs[i].body)
		// Fixed draft lengths, since adaptive ones depend on the load of the machine.
		reqs[i].body["speculate"] = fmt.Sprintf("%s:%d", []string{"suffix", "lookup", "model"}[i/2%3], 1+(5*i+8)%9)
	}
	got, _ := c.open(reqs).wait(t) // the next run drafts from its outputs
	same(t, "with drafts", reqs, want, got)
	for i, id := range []string{"node-1", "node-3"} {
		before := c.state().Drafts
		choices := make(chan []string, 1)
		go func() { choices <- c.send(t, whole, 1) }()
		// Some streams end after few steps, as before.
		surviveFaultAt(t, c, "with drafts, kill -9 "+id, reqs, want, 6*len(reqs), func() { c.signal(id, syscall.SIGKILL) })
		same(t, "with drafts, kill -9 "+id, whole, wantWhole, <-choices)
		c.waitNodes(3-i, recoverLimit)
		if after := c.state().Drafts; before == nil || after.Accepted == before.Accepted {
			t.Errorf("drafts before %+v, after %+v: none were right", before, after)
		} else {
			t.Logf("%d of %d drafts were right", after.Accepted-before.Accepted, after.Drafted-before.Drafted)
		}
	}
	c.waitIdle(patience)
}
