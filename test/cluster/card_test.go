package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Nodes with a graphics card, in processes of their own. The driver is emulated (package emulator), unless
// SHOAL_CARD=0 selects the machine's card.

// cardEnv returns the environment of processes that load the driver.
func cardEnv(t testing.TB, more ...string) []string {
	t.Helper()
	if os.Getenv("SHOAL_CARD") != "" {
		return more
	}
	return append([]string{"LD_LIBRARY_PATH=" + emulator.Compile(t), "CUDA_EMULATOR_MEMORY=2000000000"}, more...)
}

// static is the value of config.tags for a binary without cgo, like the released ones. Only such a
// binary loads the driver.
const static = "static"

// cardStreams returns streams that a card serves: the cache policy is full.
func cardStreams(n, tokens int) (out []request) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range n {
		prompt := make([]int, 5+3*i)
		for j := range prompt {
			prompt[j] = 5 + r.IntN(500)
		}
		b := map[string]any{"prompt": prompt, "max_tokens": tokens, "stream": true, "logprobs": 3,
			"return_tokens_as_token_ids": true, "ignore_eos": true, "speculate": "off", "temperature": 0}
		if i%2 == 1 {
			b["temperature"], b["seed"] = 0.9, 100+i
		}
		out = append(out, request{fmt.Sprintf("stream %d", i), "/v1/completions", b})
	}
	return out
}

// computesOn returns the devices of the serving nodes.
func (s *system) computesOn() (devices []string) {
	for _, n := range s.state().Nodes {
		if n.State == "ready" {
			devices = append(devices, n.Device)
		}
	}
	return devices
}

// TestCardNodeDies: a card's node dies under 8 streams, and CPU nodes continue them. All streams have the
// tokens and the log-probabilities of a run on the CPU nodes alone. The node's process is killed, or it
// ends because the driver reports an error.
func TestCardNodeDies(t *testing.T) {
	parallel(t)
	broken := filepath.Join(t.TempDir(), "broken")
	env := cardEnv(t, "CUDA_EMULATOR_FAIL="+broken)
	flags := []string{"--model", goldenModel, "--quant", "q8_0"}
	s, gossip := coordinate(t, config{tags: static, args: append([]string{"--nodes", "2"}, flags...)})
	node := func(id string, env []string, args ...string) *process {
		return spawn(t, built.shoal(t, static), id, env,
			append([]string{"node", "--id", id, "--join", gossip, "--threads", "1", "--model", goldenModel}, args...)...)
	}
	node("a", nil)
	node("b", nil)
	s.waitReady()
	reqs := cardStreams(8, 24)
	want, _ := s.undisturbed(t, reqs)
	for _, c := range []struct {
		what string
		do   func(*process)
	}{
		{"kill -9 of the card's process", func(p *process) { p.kill(t) }},
		{"an error of the driver", func(p *process) {
			if err := os.WriteFile(broken, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if code := p.end(t, patience); code != 4 {
				t.Errorf("the card's process ended with status %d, not 4", code)
			}
			log, err := os.ReadFile(p.err)
			if err != nil || !strings.Contains(string(log), "the graphics card failed") ||
				!strings.Contains(string(log), "CUDA_ERROR_ECC_UNCORRECTABLE") {
				t.Errorf("%v: %s", err, log)
			}
		}},
	} {
		if c.what != "kill -9 of the card's process" && os.Getenv("SHOAL_CARD") != "" {
			continue // a real driver cannot be made to fail
		}
		id := fmt.Sprintf("card-%d", time.Now().UnixNano())
		p := node(id, env, "--device", "cuda:0")
		testutil.Eventually(t, startLimit, "the card serves", func() (bool, string) {
			on := s.computesOn()
			return len(on) == 1 && strings.HasPrefix(on[0], "cuda:0"), fmt.Sprint(on)
		})
		s.waitReady()
		surviveFaultAt(t, s, c.what, reqs, want, 40, func() { c.do(p) })
		if on := s.computesOn(); len(on) == 0 || strings.Contains(strings.Join(on, ""), "cuda") {
			t.Errorf("%s: nodes on %q serve", c.what, on)
		}
	}
	_ = syscall.Unlink(broken)
}

var autoLine = regexp.MustCompile(`msg="the CPU computes, not a graphics card" device=auto reason="?(.*)`)

// TestDeviceAuto: `up --device auto` computes on a card that serves the model and the options, and names the
// card. Otherwise it prints the reason why the CPU computes.
func TestDeviceAuto(t *testing.T) {
	parallel(t)
	env := cardEnv(t)
	ask := map[string]any{"prompt": []int{5, 6, 7, 8}, "max_tokens": 4, "temperature": 0, "logprobs": 2}
	start := func(t *testing.T, env []string, args ...string) *system {
		return start(t, config{tags: static, env: env, args: append([]string{"--device", "auto", "--log-level", "info"}, args...)})
	}
	t.Run("card", func(t *testing.T) {
		c := start(t, env, "--model", goldenModel, "--quant", "q8_0")
		if on := c.computesOn(); len(on) != 1 || !strings.HasPrefix(on[0], "cuda:0 ") {
			t.Errorf("nodes on %q", on)
		}
		got := string(c.want(200, "POST", "/v1/completions", ask).body)
		cpu := string(up(t, 2, "--model", goldenModel, "--quant", "q8_0").want(200, "POST", "/v1/completions", ask).body)
		if choices(got) != choices(cpu) {
			t.Errorf("the card answers %s, the CPU %s", got, cpu)
		}
		if out, _ := os.ReadFile(c.head.out); !strings.Contains(string(out), "cuda:0") {
			t.Errorf("the command does not print the device: %s", out)
		}
	})
	for _, x := range []struct {
		name, why string
		env       []string
		args      []string
	}{
		{"unsupported model", "latent attention are not computed on a card", env, []string{"--model", "../../models/dace"}},
		{"several nodes", "--nodes 2: a card computes a model alone", env, []string{"--model", goldenModel, "--nodes", "2"}},
		{"policy", "--policy is not computed on a card", env, []string{"--model", goldenModel, "--policy", "quest"}},
		{"small memory", "too little free memory on the card", append(env, "CUDA_EMULATOR_MEMORY=600000000"), []string{"--model", goldenModel}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := start(t, x.env, x.args...)
			m := c.head.line(t, c.head.err, autoLine, startLimit)
			if !strings.Contains(m[1], x.why) {
				t.Errorf("reason %q, want %q", m[1], x.why)
			}
			if on := c.computesOn(); len(on) == 0 || strings.Contains(strings.Join(on, ""), "cuda") {
				t.Errorf("nodes on %q", on)
			}
		})
	}
}

// choices cuts the answer of a completion off its identification.
func choices(body string) string {
	_, after, _ := strings.Cut(body, `"choices"`)
	return after
}

// TestCardRefusals: if the requested card cannot compute, the command ends with the reason.
func TestCardRefusals(t *testing.T) {
	parallel(t)
	env := cardEnv(t)
	for _, x := range []struct {
		name, why string
		env       []string
		args      []string
	}{
		{"no driver", "libcuda.so.1: cannot open shared object file", []string{"LD_LIBRARY_PATH="}, nil},
		{"no such card", "the driver finds no cuda:3 among its cards (1)", env, []string{"--device", "cuda:3"}},
		{"old card", "compute capability 7.5 is too old", append(env, "CUDA_EMULATOR_CAPABILITY=75"), nil},
		{"other process", "another process uses it, and its compute mode allows only one", append(env, "CUDA_EMULATOR_BUSY=1"), nil},
		{"other process's memory", "too little free memory on the card", append(env, "CUDA_EMULATOR_OTHERS=1500000000"), nil},
		{"other bits", "differ from the CPU's", append(env, "CUDA_EMULATOR_FAULT=rms_norm"), nil},
		{"unsupported model", "latent attention are not computed on a card", env, []string{"--model", "../../models/dace"}},
		{"unsupported policy", "--policy is not computed on a card", env, []string{"--policy", "quest"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.name == "no driver" {
				if _, err := os.Stat("/dev/nvidiactl"); err == nil {
					t.Skip("this machine has a card")
				}
			}
			args := append([]string{"up", "--device", "cuda:0", "--listen", "127.0.0.1:0"}, x.args...)
			if !slices.Contains(args, "--model") {
				args = append(args, "--model", goldenModel)
			}
			p := spawn(t, built.shoal(t, static), "up", x.env, args...)
			code := p.end(t, startLimit)
			text, err := os.ReadFile(p.err)
			if err != nil || code != 1 || !strings.Contains(string(text), x.why) || !strings.Contains(string(text), "--device") {
				t.Errorf("status %d, %v: %s; want %q", code, err, text, x.why)
			}
		})
	}
}
