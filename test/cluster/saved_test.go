package cluster_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// savedSessions are sessions of a cluster of two nodes whose caches go to files.
type savedSessions struct {
	*processCluster
	policies             []string // of each session
	models               []string // of each session; nil: the only one
	first, added, answer int      // tokens of the first prompt, of the others, of an answer
	common               bool     // all sessions have the same first prompt
	one                  *system  // the undisturbed node
	disk                 string
	want                 map[[2]int]string // answers by session and turn
}

// start begins the cluster. It compares the answers with those of one node with room for all caches.
func (x *savedSessions) start(t *testing.T, turns int, args, headArgs, nodeArgs []string) {
	t.Helper()
	x.one = up(t, 1, append([]string{"--data-dir", filepath.Join(t.TempDir(), "one"), "--prefix-cache", "off"}, args...)...)
	x.want = map[[2]int]string{}
	for n := range turns {
		for s := range x.policies {
			x.want[[2]int{s, n}] = comparablePart(t, x.one.want(200, "POST", "/v1/completions", x.turn(s, n)))
		}
	}
	x.disk = filepath.Join(t.TempDir(), "kv")
	x.processCluster = newProcessCluster(t, t.TempDir(), 2)
	x.headArgs = append([]string{"--prefix-cache", "off", "--replicas", "0"}, headArgs...)
	x.nodeArgs = append([]string{"--kv-disk", x.disk}, nodeArgs...)
	x.processCluster.start()
}

// turn returns the body of a turn. Its new tokens depend on the session and the number only.
func (x *savedSessions) turn(s, n int) map[string]any {
	added, of := x.added, s
	if n == 0 {
		added = x.first
		if x.common {
			of = 0
		}
	}
	prompt := ids(rand.New(rand.NewPCG(uint64(of), uint64(n))), added)
	for i := range prompt { // the tiny models have 512 ids
		prompt[i] = 16 + prompt[i]%496
	}
	b := map[string]any{"session": fmt.Sprint("s", s), "session_turns": n, "kv_policy": x.policies[s],
		"prompt": prompt, "add_special_tokens": false,
		"max_tokens": x.answer, "ignore_eos": true, "logprobs": 2, "return_tokens_as_token_ids": true,
		"skip_special_tokens": false, "temperature": 0.8, "seed": n}
	if x.models != nil {
		b["model"] = x.models[s]
	}
	return b
}

func (x *savedSessions) files() ([]string, error) {
	return filepath.Glob(filepath.Join(x.disk, "sessions", "*", "[0-9a-f]*-*"))
}

// written waits until the cache of each session after a number of turns is in a file.
func (x *savedSessions) written(turns int) {
	x.t.Helper()
	tokens := uint32(x.first + x.added*(turns-1) + x.answer*turns - 1) // the last token is not in the cache
	testutil.Eventually(x.t, patience, "caches in files", func() (bool, string) {
		files, err := x.files()
		found, have := 0, []uint32{}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && len(b) > 120 {
				have = append(have, binary.LittleEndian.Uint32(b[116:]))
				if have[len(have)-1] == tokens {
					found++
				}
			}
		}
		return err == nil && found == len(x.policies), fmt.Sprintf("files have %d tokens, want %d; %v", have, tokens, err)
	})
}

// restart ends all processes by a signal, and starts them again.
func (x *savedSessions) restart(with syscall.Signal) {
	x.t.Helper()
	for _, p := range append(slices.Clone(x.nodes), x.coordinator) {
		if err := p.cmd.Process.Signal(with); err != nil {
			x.t.Fatal(err)
		}
		p.end(x.t, patience)
	}
	x.startCoordinator()
	for i := range x.nodes {
		x.startNode(i)
	}
	x.whole()
}

// whole waits for all nodes, because no turn finds the files of an absent node.
func (x *savedSessions) whole() {
	x.t.Helper()
	x.ready(recoverLimit)
	x.serving(len(x.nodes))
}

// ask sends the next turn of each session. If known is true, it must read only its new tokens.
func (x *savedSessions) ask(n int, known bool) {
	x.t.Helper()
	for s := range x.policies {
		x.send(s, n, known)
	}
}

func (x *savedSessions) send(s, n int, known bool) {
	x.t.Helper()
	a := x.processCluster.want(200, "POST", "/v1/completions", x.turn(s, n))
	if got, want := comparablePart(x.t, a), x.want[[2]int{s, n}]; got != want {
		x.t.Fatalf("session %d (%s), turn %d:\n%s, want\n%s", s, x.policies[s], n, got, want)
	}
	prompt, got := cachedTokens(x.t, a)
	want := 0
	if known {
		want = prompt - x.added - 1 // the last token of an answer was not in the cache
	}
	if got != want {
		x.t.Errorf("session %d (%s), turn %d: %d of %d tokens were in a cache, want %d", s, x.policies[s], n, got, prompt, want)
	}
}

// cachedTokens returns the number of prompt tokens of an answer, and of those that were in a cache.
func cachedTokens(t testing.TB, a answer) (prompt, cached int) {
	t.Helper()
	var r struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(a.body, &r); err != nil {
		t.Fatal(err)
	}
	return r.Usage.Prompt, r.Usage.Details.Cached
}

func (x *savedSessions) counts() (c wire.SavedCachesState) {
	if s := x.look().SavedCaches; s != nil {
		c = *s
	}
	return c
}

// end deletes the sessions, and waits until their files are removed.
func (x *savedSessions) end() {
	x.t.Helper()
	for s := range x.policies {
		x.processCluster.want(200, "DELETE", fmt.Sprint("/v1/sessions/s", s), nil)
	}
	testutil.Eventually(x.t, patience, "the files are removed", func() (bool, string) {
		files, err := x.files()
		return err == nil && len(files) == 0, fmt.Sprint(files, err)
	})
}

// TestSessionsOnDisk: two nodes have memory for two of the caches of three sessions. The other caches are in
// files, so each turn computes only its new tokens, also after all processes were killed and restarted, and
// after one node was. After the loss of all files, turns read their text. Every token and log-probability
// equals that of one node with memory for all caches.
func TestSessionsOnDisk(t *testing.T) {
	const turns, restart, killed, lost = 9, 5, 6, 7
	parallel(t)
	streaming := "streaming:sink=4,recent=300,positions=cache"
	x := savedSessions{policies: []string{streaming, "tova:size=304,positions=cache", streaming}, first: 200, added: 40, answer: 12}
	x.start(t, turns, nil, nil, []string{"--kv-memory", "4MiB"})
	for n := range turns {
		switch n {
		case restart:
			x.written(n)
			x.restart(syscall.SIGKILL)
		case killed, lost:
			x.written(n)
			victim := n % 2
			x.nodes[victim].kill(t)
			if n == lost {
				files, err := x.files()
				if err != nil || len(files) == 0 {
					t.Fatalf("%v: %v", files, err)
				}
				for _, f := range files {
					if err := os.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
				x.nodes[1-victim].kill(t)
				x.startNode(1 - victim)
			}
			x.startNode(victim)
			x.whole()
		}
		x.ask(n, n != 0 && n != lost)
		c := x.counts()
		if n == restart-1 || n == restart || n == turns-1 {
			t.Logf("after turn %d: %+v", n, c)
		}
		if n == restart && int(c.Read) < len(x.policies) || n == restart-1 && c.Read == 0 {
			t.Errorf("after turn %d: %+v", n, c)
		}
	}
	x.end()
}

// TestEndedSessionsAfterRestart: a session is deleted while the node with its file is away, and the coordinator is killed
// then. The node removes the file when it is there again. A newer session of the name keeps its cache.
func TestEndedSessionsAfterRestart(t *testing.T) {
	parallel(t)
	x := savedSessions{policies: []string{"streaming:sink=4,recent=300,positions=cache", "tova:size=304,positions=cache"},
		first: 80, added: 20, answer: 8}
	x.disk = filepath.Join(t.TempDir(), "kv")
	x.processCluster = newProcessCluster(t, t.TempDir(), 1)
	x.headArgs, x.nodeArgs = []string{"--prefix-cache", "off"}, []string{"--kv-disk", x.disk}
	x.processCluster.start()
	turn := func(s, n int) answer { return x.processCluster.want(200, "POST", "/v1/completions", x.turn(s, n)) }
	for s := range x.policies {
		turn(s, 0)
	}
	x.written(1)
	x.nodes[0].kill(t)
	x.processCluster.want(200, "DELETE", "/v1/sessions/s0", nil)
	x.coordinator.kill(t)
	x.startCoordinator()
	x.startNode(0)
	x.whole()
	count := func(n int) {
		t.Helper()
		testutil.Eventually(t, patience, fmt.Sprint("sessions with a file: ", n), func() (bool, string) {
			files, err := x.files()
			return err == nil && len(files) == n, fmt.Sprint(files, err)
		})
	}
	count(1)
	if prompt, cached := cachedTokens(t, turn(1, 1)); cached != prompt-x.added-1 {
		t.Errorf("%d of %d tokens of the other session were in a cache", cached, prompt)
	}
	turn(0, 0)
	count(2) // also of the newer session of the name
	x.restart(syscall.SIGKILL)
	if prompt, cached := cachedTokens(t, turn(0, 1)); cached != prompt-x.added-1 {
		t.Errorf("%d of %d tokens of the newer session were in a cache", cached, prompt)
	}
	x.end()
}

// TestSessionsOnDiskModels: caches in files have recurrent states, rows of windows, latents and rows of LoRA
// adapters. The turns after SIGTERM and after SIGKILL of all processes read only their new tokens. Every
// token and log-probability equals that of one node that was not disturbed.
func TestSessionsOnDiskModels(t *testing.T) {
	parallel(t)
	for _, c := range []struct {
		model    string
		policies []string
		adapters bool
		long     bool
	}{
		{model: "qwen3_next", policies: []string{evicting, selecting}},                                // recurrent states
		{model: "mistral_window", policies: []string{evicting, "snapstream:recent=20,topk=24"}},       // a window
		{model: "deepseek_v2", policies: []string{evicting, selecting}},                               // latents
		{model: "llama", policies: []string{evicting, evicting, evicting, selecting}, adapters: true}, // LoRA
		{model: "lfm2", policies: []string{evicting, selecting}, long: true},
		{model: "granite_hybrid", policies: []string{evicting, selecting}, long: true},
		{model: "falcon_h1", policies: []string{evicting, selecting}, long: true},
		{model: "nemotron_h", policies: []string{evicting, selecting}, long: true},
		{model: "gemma3", policies: []string{evicting, selecting}, long: true},
		{model: "gpt_oss", policies: []string{evicting, selecting}, long: true},
		{model: "deepseek_v3", policies: []string{evicting, selecting}, long: true},
		{model: "swiftkv_across", policies: []string{evicting, selecting}, long: true},
	} {
		t.Run(c.model, func(t *testing.T) {
			parallel(t)
			if c.long {
				testlevel.NeedFull(t)
			}
			const turns, restart, killed = 4, 2, 3
			dir := folder(t, c.model, true)
			args := []string{"--model", dir}
			x := savedSessions{policies: c.policies, first: 90, added: 20, answer: 8}
			if c.adapters {
				x.models = []string{"a0", "a1", "base", "a0"}
				args = append(args, "--model-name", "base")
				args = append(args, adapters(t, dir, 2)...)
			}
			x.start(t, turns, args, args, []string{"--model", dir})
			for n := range turns {
				if n >= restart {
					x.written(n)
					x.restart(map[int]syscall.Signal{restart: syscall.SIGTERM, killed: syscall.SIGKILL}[n])
				}
				x.ask(n, n != 0)
				if read := x.counts().Read; n >= restart && int(read) != len(x.policies) { // since the coordinator began
					t.Errorf("turn %d: %d of %d caches came from files", n, read, len(x.policies))
				}
			}
			x.end()
		})
	}
}

// TestForksOfSavedSessions: a cache that was read from a file is the beginning of other requests with the same text,
// two choices of one, while its session continues. All memory is free at the end. Every token and log-probability
// equals that of one node that was not disturbed and shares nothing.
func TestForksOfSavedSessions(t *testing.T) {
	parallel(t)
	dir := folder(t, "llama", true)
	x := savedSessions{policies: []string{selecting, selecting}, first: 90, added: 20, answer: 8, common: true}
	x.start(t, 5, []string{"--model", dir}, []string{"--model", dir}, []string{"--model", dir})
	const tail = 4 // the tokens of a prompt that selecting reads like generated ones
	text := x.turn(0, 0)["prompt"].([]int)
	both := map[string]any{"prompt": append(text[:x.first:x.first], 20, 21, 22, 23), "n": 2, "kv_policy": selecting, "max_tokens": 12,
		"ignore_eos": true, "logprobs": 2, "return_tokens_as_token_ids": true, "temperature": 0.8, "seed": 5, "add_special_tokens": false,
		"skip_special_tokens": false, "cache": false}
	choices := func(a answer) string {
		var r struct{ Choices json.RawMessage }
		if err := json.Unmarshal(a.body, &r); err != nil {
			t.Fatal(err)
		}
		return string(r.Choices)
	}
	want := choices(x.one.want(200, "POST", "/v1/completions", both))
	x.ask(0, false)
	x.ask(1, true)
	x.written(2)
	x.restart(syscall.SIGKILL)
	x.send(0, 2, true)
	if c := x.counts(); c.Read != 1 {
		t.Errorf("the cache did not come from a file: %+v", c)
	}
	delete(both, "cache")
	a := x.processCluster.want(200, "POST", "/v1/completions", both)
	if got := choices(a); got != want {
		t.Errorf("two choices that begin with a session's cache:\n%s, want\n%s", got, want)
	}
	if prompt, cached := cachedTokens(t, a); prompt != x.first+tail || cached != x.first {
		t.Errorf("%d of %d tokens of two choices were in a session's cache, want %d", cached, prompt, x.first)
	}
	x.send(0, 3, true)
	x.send(1, 2, true)
	x.send(1, 3, true)
	x.written(4) // with the tokens that were shared
	x.restart(syscall.SIGKILL)
	for s := range x.policies {
		x.send(s, 4, true)
	}
	x.end()
	testutil.Eventually(t, patience, "all memory is free", func() (bool, string) {
		var used int64
		nodes := x.look().Nodes
		for _, n := range nodes {
			used += n.KVUsedBytes + n.KVReserved
		}
		return used == 0, fmt.Sprint(nodes)
	})
}

// adapters writes random LoRA adapters of a model, and returns the flags that serve them as a0, a1, ...
func adapters(t *testing.T, base string, n int) (args []string) {
	t.Helper()
	ck, err := checkpoint.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for i := range n {
		dir := filepath.Join(t.TempDir(), "adapter")
		if err := loratest.Write(dir, loratest.Config(8, nil), loratest.Random(&ck.Config, 8, uint64(i))); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--lora", fmt.Sprintf("a%d=%s", i, dir))
	}
	return args
}

const (
	evicting  = "streaming:sink=4,recent=60"
	selecting = "squeezed:clusters=0.1,sparsity=0.8,tail=4,obs=8"
)
