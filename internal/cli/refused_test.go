package cli

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestMain exits if a test starts a cluster process by mistake, which would run this test binary as a
// node.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestWrongFlagsAreRefused checks that every command refuses wrong flags before it starts work. The
// error names the flag, the value and the valid values.
func TestWrongFlagsAreRefused(t *testing.T) {
	empty, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("XDG_STATE_HOME", cache)
	busy, err := net.Listen("tcp", "127.0.0.1:0") // wrong flags are refused before a port is opened
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	const big = "9223372036854775807"
	for _, c := range []struct {
		args, want string // want: parts of the error in order, separated by " ... "
	}{
		{"lab decode --model /nope", `no shape "/nope" ... bench160m ... no folder is read`},
		{"lab prefill --model nope", `no shape "nope" ... bench160m`},
		{"lab cluster --model /nope", `no shape "/nope" ... bench160m`},
		{"lab batch --model /nope", "/nope: no such file ... config.json, or a .gguf file ... bench160m"},
		{"lab batch --model EMPTY", "EMPTY: not a Hugging Face model folder ... bench160m"},
		{"lab decode --threads 100000", "--threads 100000: want 1 to 1024"},
		{"lab decode --kv-type q4", "--kv-type: ... use f32"},
		{"lab decode --cpuprofile /nope/x", "--cpuprofile: open /nope/x"},
		{"lab decode -m fry --tokens " + big, "fry supports 8192 tokens ... --tokens"},
		{"lab decode -m fry --context " + big, "fry supports 8192 tokens ... --context"},
		{"lab prefill -m fry --context 8192", "fry supports 8192 tokens ... --context"},
		{"lab cluster --nodes 0", "--nodes 0: want 1 to 64"},
		{"lab cluster --threads=-1", "--threads -1: want 1 to 1024"},
		{"lab cluster -m fry --prompt " + big, "--prompt " + big + " ... fry supports 8192 tokens"},
		{"lab cluster -m fry --context " + big, "--context " + big + " ... fry supports 8192 tokens"},
		{"lab cluster -m fry --tokens " + big, "--tokens " + big + " ... fry supports 8192 tokens"},
		{"lab cluster --limit=-1s", "--limit -1s: want at least 1ms"},
		{"up --model /nope", "/nope: no such file ... config.json, or a .gguf file"},
		{"up --model EMPTY", "EMPTY: not a Hugging Face model folder ... config.json"},
		{"up --bind 10.0.0.1", "--bind has no effect without --cluster: set --cluster, or remove --bind"},
		{"up --token-life 2h", "--token-life has no effect without --cluster"},
		{"up --cluster lab --join-port 70000", "--join-port 70000: want 1 to 65535"},
		{"up --threads=-1", "--threads -1: want 1 to 1024"},
		{"up -n 4 --share=-1,1,1,1", "--share -1: want at least 0"},
		{"up -n 4 --share=1,1,1,nan", "--share NaN: want at least 0"},
		{"up -n 4 --share=1,1,1,inf", "--share +Inf: want at least 0"},
		{"up --queue=-1", "--queue -1: want at least 1"},
		{"up --step-deadline=-1s", "--step-deadline -1s ... want at least 1ms"},
		{"up --load-deadline=1us", "--load-deadline 1µs ... want at least 1ms"},
		{"up --sync-deadline=-1s", "--sync-deadline -1s ... want at least 1ms"},
		{"up --log-dir /dev/null/x", "--log-dir: mkdir /dev/null"},
		{"up --quant q3", `--quant "q3": known are f32`},
		{"up --standby --quant q3", `--quant "q3": known are f32`},
		{"up --kv-type q3", `--kv-type "q3": known are f32`},
		{"up --kv-memory 10", "--kv-memory 10: the caches of the shortest request take"},
		{"up --kv-memory 900000GiB", "--kv-memory 900000.00 GiB ... more than ... may use ... set at most"},
		{"up --standby --kv-memory 900000GiB", "--kv-memory 900000.00 GiB ... more than ... may use"},
		{"node --model fry --join 127.0.0.1:1 --kv-memory 900000GiB", "--kv-memory 900000.00 GiB for each of 1 node is more than"},
		{"up --policy nope", "--policy: "},
		{"up --mapping nope", "nope ... auto"},
		{"up --max-context 1", "--max-context 1: want 2 to 8192 tokens, which the model supports"},
		{"up --tool-parser nope", `--tool-parser "nope": known are`},
		{"up --chat-template /nope", "no chat template at /nope"},
		{"coordinator --quant q3", `--quant "q3": known are f32`},
		{"coordinator --tool-parser nope", `--tool-parser "nope": known are`},
		{"up --api-key=EMPTYKEY", "--api-key: key 1 of 1 is empty"},
		{"up --api-key=a --api-key=EMPTYKEY", "--api-key: key 2 of 2 is empty"},
		{"up --api-key=a,,b", "--api-key: key 2 of 3 is empty"},
		{"up --api-keys /dev/null", "--api-keys: /dev/null is not a regular file"},
		{"coordinator --api-key=EMPTYKEY", "--api-key: key 1 of 1 is empty"},
		{"up --listen nonsense", `--listen "nonsense" is not HOST:PORT`},
		{"up --listen 127.0.0.1:99999", `--listen "127.0.0.1:99999" is not HOST:PORT`},
		{"up --listen 0.0.0.0:0", "no API key"},
		{"up --api-key auto,b", "--api-key auto is for shoal up, as the only key"},
		{"coordinator --api-key auto", "--api-key auto is for shoal up"},
		{"up --listen 0.0.0.0:0 --api-key=BLANK", "--api-key: key 1 of 1 is empty"},
		{"coordinator --api-key=BLANK", "--api-key: key 1 of 1 is empty"},
		{"coordinator --listen nonsense", `--listen "nonsense" is not HOST:PORT`},
		{"coordinator --listen 127.0.0.1:0 --join nonsense", `--join: "nonsense" is not host:port`},
		{"node --join 127.0.0.1:1 --model /nope", "/nope: no such file ... config.json ... --model bus"},
		{"node --join 127.0.0.1:1 --threads=-1", "--threads -1: want 1 to 1024"},
		{"node --model fry --join 127.0.0.1:1 --share=nan", "--share NaN: want at least 0"},
		{"node --model fry --join nonsense", `--join: "nonsense" is not host:port`},
		{"demo --tokens 0", "--tokens 0: want at least 1"},
		{"demo --nodes 0", "--nodes 0: want 1 to 64"},
		{"plan -m /nope", "/nope/config.json: no such file ... deepseek-r1"},
		{"plan -m EMPTY", "EMPTY/config.json: no such file ... deepseek-r1"},
		{"plan -m nope", `unknown model "nope" ... deepseek-r1`},
		{"plan --rows " + big, "--rows " + big + ": want 1 to 65536"},
		{"plan --nodes 0", "--nodes 0: want 1 to 256"},
		{"plan --ratio 1", "--ratio 1: want 2 or more"},
		{"plan -m mistral-7b-v0.1 --context 131072", "--context 131072: want 64 to 32768 tokens, the longest context of mistral-7b-v0.1"},
		{"plan -m fry --ratio 10000", "--ratio 10000: contexts of"},
		{"verify /nope", "/nope: no such file ... config.json, or a .gguf file"},
		{"verify --nodes 2,0", "--nodes 0: want 1 to 256"},
		{"tokenize --model /nope x", "/nope: no such file ... tokenizer.json, or a .gguf file"},
		{"eval ruler --model /nope", "/nope: no such file ... tokenizer.json, or a .gguf file"},
		{"eval ruler --threads 100000", "--threads 100000: want 1 to 1024"},
		{"eval ruler --timeout=-1s", "--timeout -1s: want at least 1ms"},
	} {
		var args []string
		for _, a := range strings.Fields(c.args) {
			args = append(args, strings.NewReplacer("EMPTYKEY", "", "EMPTY", empty, "BLANK", " ").Replace(a))
		}
		if (args[0] == "up" || args[0] == "coordinator") && !strings.Contains(c.args, "--listen") {
			args = append(args, "--listen", busy.Addr().String())
		}
		var stderr, out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		status := run(ui.Env{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr}, args)
		cancel()
		if status != 1 || !testutil.InOrder(stderr.String(), strings.ReplaceAll(c.want, "EMPTY", empty)) ||
			out.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("shoal %s: status %d, want 1 and one line with %q: %s%s", c.args, status, c.want, &out, &stderr)
		}
	}
	left, err := filepath.Glob(filepath.Join(cache, "shoal", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if filepath.Base(path) != "digests" { // the cache of checkpoint hashes
			t.Errorf("a refused command left %s", path)
		}
	}
}

// TestEmptyKeyInTheEnvironment checks that an empty environment variable does not open the API.
func TestEmptyKeyInTheEnvironment(t *testing.T) {
	t.Setenv("SHOAL_API_KEY", "")
	for _, command := range []string{"up", "coordinator"} {
		var stderr bytes.Buffer
		if status := run(ui.Env{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &stderr, Stderr: &stderr},
			[]string{command, "--listen", "127.0.0.1:0"}); status != 1 || !strings.Contains(stderr.String(), "--api-key: key 1 of 1 is empty") {
			t.Errorf("%s: status %d: %s", command, status, &stderr)
		}
	}
	var stderr bytes.Buffer
	if status := run(ui.Env{Ctx: t.Context(), Stdout: &stderr, Stderr: &stderr},
		[]string{"status", "--server", "127.0.0.1:1"}); status != 1 || !strings.Contains(stderr.String(), "connection refused") {
		t.Errorf("status %d: %s", status, &stderr)
	}
}
