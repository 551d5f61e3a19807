package cluster_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// shortContext is the bundled model with another context length.
func shortContext(t *testing.T, tokens int) string {
	t.Helper()
	from, dir := filepath.Join("..", "..", "models", "fry"), t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() == "config.json" {
			b = regexp.MustCompile(`("max_position_embeddings": *)\d+`).ReplaceAll(b, fmt.Appendf(nil, "${1}%d", tokens))
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// conversation has one session of token ids under each policy.
type conversation struct {
	policies []string
	nodes    int // of the cluster with faults
	context  int // of the model, in tokens
	turns    int
	added    int // new tokens of each turn
	answer   int
}

// turn returns the body of a turn. Its new tokens depend on the session and the number only.
func (c *conversation) turn(session, number int) map[string]any {
	n := c.added
	if number == 0 {
		n = c.context / 4
	}
	return map[string]any{"session": fmt.Sprint("s", session), "session_turns": number, "kv_policy": c.policies[session],
		"prompt": ids(rand.New(rand.NewPCG(uint64(session), uint64(number))), n), "add_special_tokens": false,
		"max_tokens": c.answer, "ignore_eos": true, "logprobs": 2, "return_tokens_as_token_ids": true,
		"skip_special_tokens": false, "temperature": 0.8, "seed": number}
}

// comparablePart returns the part of an answer that must be the same in all clusters.
func comparablePart(t testing.TB, a answer) string {
	t.Helper()
	var r struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(a.body, &r); err != nil || len(r.Choices) != 1 {
		t.Fatalf("%v: %s", err, a.body)
	}
	return fmt.Sprint(r.Usage.Prompt, " ", string(r.Choices[0]))
}

// waiting returns the bytes of each cache that waits for its next turn, and the node of the last of
// them.
func waiting(s wire.ClusterState) (bytes []int64, owner string) {
	for _, r := range s.Sequences {
		if r.State == "session" {
			bytes, owner = append(bytes, r.KVBytes), r.Node
		}
	}
	return bytes, owner
}

// TestSessionOfManyTurns: conversations continue for four times the model's context, under policies with
// positions in the cache. Their caches take about as much memory in the last turn as when they were first full.
// On three nodes, a node with a cache is killed between two turns, and another one right before a turn. The
// coordinator is killed, and then everything ends and starts again. Every token and log-probability equals that
// of one node without faults.
func TestSessionOfManyTurns(t *testing.T) {
	c := conversation{policies: []string{"streaming:sink=4,recent=28,positions=cache", "tova:size=32,positions=cache"},
		nodes: 3, context: 128, turns: 40, added: 6, answer: 7}
	if testlevel.Long() || os.Getenv("SHOAL_E2E") == "stories" {
		c.context, c.turns = 512, 200
	}
	c.run(t)
}

// TestSessionOfTrainedContext is TestSessionOfManyTurns at the length that the model was trained with, on two nodes:
// 34,923 tokens.
func TestSessionOfTrainedContext(t *testing.T) {
	testlevel.NeedFull(t)
	c := conversation{policies: []string{"streaming:sink=4,recent=1020,positions=cache"},
		nodes: 2, context: 8192, turns: 200, added: 125, answer: 40}
	c.run(t)
}

// garbageLimit bounds the memory that a node and the process of shoal up need in a later turn and not in an earlier one:
// 128 MiB of garbage in the heap of the node, and as much for the heap of the other process, the rotary positions of
// more tokens, and the turns.
const garbageLimit = 256 << 20

func (c *conversation) run(t *testing.T) {
	parallel(t)
	model := shortContext(t, c.context)
	one := up(t, 1, "--model", model, "--data-dir", filepath.Join(t.TempDir(), "one"))
	want := map[string]string{}
	most, tokens, resident := map[int]int64{}, 0, int64(0)
	logged := []int{c.turns / 4, c.turns / 2, c.turns}
	for n := range c.turns {
		for s := range c.policies {
			a := one.want(200, "POST", "/v1/completions", c.turn(s, n))
			want[fmt.Sprint(s, " ", n)] = comparablePart(t, a)
		}
		tokens = c.context/4 + n*c.added + (n+1)*c.answer
		bytes, _ := waiting(one.state())
		if len(bytes) != len(c.policies) {
			t.Fatalf("turn %d: %d caches wait", n, len(bytes))
		}
		for s, b := range bytes {
			if tokens < c.context {
				most[s] = max(most[s], b)
			} else if b > most[s]*3/2 { // rows for drafts and for steps of a plan vary with time
				t.Fatalf("turn %d: the cache of session %d has %d bytes, %d when it was first full", n, s, b, most[s])
			}
		}
		if slices.Contains(logged, n+1) {
			used := one.resident(t)
			t.Logf("after turn %d: %d tokens, caches of %v bytes, %d MiB of the processes are resident, of which %d MiB are the prefix cache",
				n+1, tokens, bytes, used>>20, prefixes(one.state())>>20)
			if resident = min(cmp.Or(resident, used), used); used > resident+garbageLimit {
				t.Errorf("after turn %d: %d bytes are resident, %d before", n+1, used, resident)
			}
		}
	}
	if tokens < 4*c.context {
		t.Fatalf("only %d tokens", tokens)
	}
	t.Logf("%d turns, %d tokens, %d times the context: caches of %v bytes", c.turns, tokens, tokens/c.context, most)
	c.times(t, one, tokens)

	p := newProcessCluster(t, t.TempDir(), c.nodes)
	p.headArgs, p.nodeArgs = []string{"--model", model}, []string{"--model", model}
	p.start()
	owner := func() int {
		var at int
		testutil.Eventually(t, patience, "a cache that waits", func() (bool, string) {
			_, id := waiting(p.look())
			_, err := fmt.Sscanf(id, "n%d", &at)
			return err == nil, id
		})
		return at
	}
	send := func(s, n int) (cached int) {
		t.Helper()
		a := p.want(200, "POST", "/v1/completions", c.turn(s, n))
		if got := comparablePart(t, a); got != want[fmt.Sprint(s, " ", n)] {
			t.Fatalf("session %d, turn %d:\n%s, want\n%s", s, n, got, want[fmt.Sprint(s, " ", n)])
		}
		_, cached = cachedTokens(t, a)
		return cached
	}
	faults := map[int]func(){
		c.turns / 5: func() {
			i := owner()
			p.nodes[i].kill(t)
			p.startNode(i)
		},
		2 * c.turns / 5: func() { // the next turn begins before the loss is detected
			p.nodes[owner()].kill(t)
		},
		3 * c.turns / 5: func() {
			p.coordinator.kill(t)
			p.startCoordinator()
			p.ready(recoverLimit)
		},
		4 * c.turns / 5: func() {
			for i := range p.nodes {
				p.nodes[i].kill(t)
			}
			_ = p.coordinator.cmd.Process.Signal(syscall.SIGTERM)
			p.coordinator.end(t, patience)
			p.startCoordinator()
			for i := range p.nodes {
				p.startNode(i)
			}
			p.ready(recoverLimit)
		},
	}
	for n := range c.turns {
		fault := faults[n]
		if fault != nil {
			fault()
		}
		for s := range c.policies {
			began := time.Now()
			cached := send(s, n)
			if fault != nil {
				t.Logf("turn %d of session %d, after a fault: %v for the whole turn, %d tokens were in a cache",
					n+1, s, time.Since(began).Round(time.Millisecond), cached)
			}
			if n >= 3*c.turns/5 && fault != nil && cached > c.context/4 { // nodes and coordinator: only the first turn's text may be cached
				t.Errorf("turn %d of session %d: %d tokens were in a cache, and every cache was lost", n+1, s, cached)
			}
		}
	}
	for s := range c.policies {
		at := fmt.Sprint("/v1/sessions/s", s)
		var x struct {
			Turns, Tokens int
			Durable       bool
		}
		p.getJSON(at, &x)
		if x.Turns != c.turns || x.Tokens != tokens || !x.Durable {
			t.Errorf("%+v", x)
		}
		p.want(409, "POST", "/v1/completions", c.turn(s, c.turns-1))
		p.want(200, "DELETE", at, nil)
		p.want(404, "POST", "/v1/completions", c.turn(s, c.turns))
		p.want(404, "GET", at, nil)
	}
	testutil.Eventually(t, patience, "the caches are freed", func() (bool, string) {
		bytes, _ := waiting(p.look())
		return len(bytes) == 0, fmt.Sprint(bytes)
	})
}

// TestSessionsReplica: the node with the cache of an idle session is lost, and another has a copy. The next turn is in the
// first plan of the new epoch. It begins with the copy, and its answer is that of one node.
func TestSessionsReplica(t *testing.T) {
	parallel(t)
	c := conversation{policies: []string{"streaming:sink=4,recent=28,positions=cache"}, context: 128, added: 6, answer: 40}
	model := shortContext(t, c.context)
	const turns = 4
	var want []string
	one := up(t, 1, "--model", model, "--data-dir", filepath.Join(t.TempDir(), "one"))
	for n := range turns {
		want = append(want, comparablePart(t, one.want(200, "POST", "/v1/completions", c.turn(0, n))))
	}
	s := up(t, 3, "--model", model, "--data-dir", filepath.Join(t.TempDir(), "three"), "--replicas", "1")
	for n := range turns {
		if n == turns-1 {
			_, owner := waiting(s.state())
			testutil.Eventually(t, patience, "a copy of the cache", func() (bool, string) {
				q := s.state().Sequences
				return len(q) == 1 && q[0].Replica != "", fmt.Sprint(q)
			})
			s.signal(owner, syscall.SIGKILL)
			testutil.Eventually(t, patience, "the cache on another node", func() (bool, string) {
				state := s.state()
				_, at := waiting(state)
				return at != "" && at != owner, fmt.Sprint(state.Sequences)
			})
		}
		a := s.want(200, "POST", "/v1/completions", c.turn(0, n))
		if got := comparablePart(t, a); got != want[n] {
			t.Fatalf("turn %d:\n%s, want\n%s", n, got, want[n])
		}
		if prompt, cached := cachedTokens(t, a); n > 0 && cached != prompt-c.added-1 {
			t.Errorf("turn %d: %d of %d tokens were in a cache", n, cached, prompt)
		}
	}
}

// prefixes returns the bytes of the prefix cache on all nodes.
func prefixes(s wire.ClusterState) (bytes int64) {
	for _, n := range s.Nodes {
		bytes += n.KVPrefix
	}
	return bytes
}

// resident returns the resident bytes of all processes, or 0 without /proc.
func (s *system) resident(t *testing.T) (bytes int64) {
	t.Helper()
	for _, pid := range append(s.children(), s.head.cmd.Process.Pid) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b); m != nil {
			kib, err := strconv.ParseInt(string(m[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			bytes += kib << 10
		}
	}
	return bytes
}

// times logs the time to the first token of a turn: with the cache of the session, with the session but
// without its cache, and of the same number of tokens without a session.
func (c *conversation) times(t *testing.T, s *system, tokens int) {
	t.Helper()
	for session, policy := range c.policies {
		kept := c.turn(session, c.turns)
		lost := c.turn(session, c.turns+1)
		lost["cache"] = false
		none := c.turn(session, 0)
		none["prompt"], none["cache"] = ids(rand.New(rand.NewPCG(9, 9)), tokens+c.added), false
		for _, name := range []string{"session", "session_turns"} {
			delete(none, name)
		}
		t.Logf("%s, %d tokens: first token of a turn after %v with its cache, %v without it; %v without a session",
			policy, tokens, first(t, s, kept), first(t, s, lost), first(t, s, none))
	}
}

// first returns the time to the first event of a stream, and reads the rest.
func first(t *testing.T, s *system, body map[string]any) (took time.Duration) {
	t.Helper()
	body["stream"] = true
	began := time.Now()
	got, err := s.stream(t.Context(), "/v1/completions", body, func(int, string) error {
		if took == 0 {
			took = time.Since(began).Round(10 * time.Microsecond)
		}
		return nil
	})
	if err != nil || !got.done {
		t.Fatalf("%v, complete %v", err, got.done)
	}
	return took
}
