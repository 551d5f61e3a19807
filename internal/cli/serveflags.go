package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
)

// size is a number of bytes: 512MiB, 2GiB, 1.5GB, 1000000.
type size int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *size) UnmarshalText(text []byte) error {
	t := strings.TrimSpace(string(text))
	unit := int64(1)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(t, 64)
	if err != nil || !(n >= 0 && n*float64(unit) < 1<<60) {
		return fmt.Errorf("%q is not a size: write 512MiB, 2GiB or a number of bytes", text)
	}
	*s = size(n * float64(unit))
	return nil
}

// serveFlags say what is served and how.
type serveFlags struct {
	modelFlag
	ModelName    []string           `placeholder:"NAME" help:"Names of the model in the API (default: the folder's name)."`
	Quant        quantType          `default:"" placeholder:"TYPE" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl; auto, or no value: the largest of bf16, q8_0 and q4_0 that fits in memory (default: as stored). Part of what decides the bits."`
	KVType       string             `name:"kv-type" placeholder:"TYPE" help:"Type of the cache: f32, bf16, int8 (default: bf16 when the weights are)."`
	Shares       map[string]float64 `mapsep:"," placeholder:"NODE=X,..." help:"Parts of the work of nodes by name, relative to each other. A node that is not named has its measured memory bandwidth in units of 10 GB/s, or the --share that it was given, at most twice what it measured and twice the median of the others."`
	Mapping      string             `default:"auto" help:"How layers are scheduled over the nodes: gather, reduce, auto. Never changes a bit."`
	Policy       string             `default:"full" help:"Cache policy of requests that name none: ${policies}."`
	MaxContext   int                `placeholder:"TOKENS" help:"Prompt and completion together (default: the model's)."`
	StepTokens   int                `default:"512" help:"Token budget of one step, decode rows and prompt chunks together."`
	Chunk        int                `placeholder:"TOKENS" help:"Most prompt tokens of one sequence in one step (default: 128 to 512, by what the nodes measured). Never changes a bit."`
	MaxSequences int                `placeholder:"N" help:"Most sequences that hold memory at once (default: 64)."`
	Replicas     int                `placeholder:"N" default:"0" help:"1: a second node keeps a copy of each decoding sequence's cache, in memory that no sequence needs, so that the loss of a node costs no prompt again."`
	PrefixCache  string             `default:"on" help:"Keep what was read of prompts in memory that no sequence needs, for prompts that begin alike: on (of one API key), shared (of all), off. Never changes a bit."`
	Speculate    string             `default:"suffix" help:"Draft tokens of requests that do not say otherwise, and verify several in one step: suffix (what followed most often, also in recent answers to the same API key), lookup (what followed the same words before), model (suffix, or what --draft guesses; the default with that), off; as many as gain time, or suffix:N, N a row. Never changes a bit."`

	SpeculateRecent string `default:"key" help:"Recent answers that --speculate suffix drafts from: those to the same API key, shared (of all keys: how fast an answer comes then tells what others were told), off."`

	DecodeSteps int `placeholder:"N" help:"Most tokens that each sequence decodes before the nodes ask what is next, as far as that takes no longer than 50 ms (default: 8; 1: each token by itself). Never changes a bit."`

	Queue        int           `default:"1024" help:"Requests that may wait; beyond them clients get 503."`
	StepDeadline time.Duration `default:"5s" help:"A node that makes no progress in a step for this long, while the others wait for it, is left out for a while. A step that takes six times as long breaks the epoch."`
	LoadDeadline time.Duration `default:"1m" help:"A node that makes no progress in loading its weights for this long, while others do, is left out for a while."`
	SyncDeadline time.Duration `default:"10s" help:"A collective that takes longer fails the step."`
}

// warn tells what of the checkpoint is not served.
func (f *serveFlags) warn(dir string, log *slog.Logger) {
	if note := adapterNote(dir); note != "" {
		log.Warn(note)
	}
}

func (f *serveFlags) config(e *env) (cluster.ServeConfig, error) {
	dir, err := f.dir(e)
	return cluster.ServeConfig{Model: dir, SwiftKV: f.SwiftKV, Names: f.ModelName, Weights: string(f.Quant), KV: f.KVType, Shares: f.Shares, Mapping: f.Mapping, Policy: f.Policy,
		MaxContext: f.MaxContext, StepTokens: f.StepTokens, Chunk: f.Chunk, MaxSequences: f.MaxSequences, Replicas: f.Replicas, PrefixCache: f.PrefixCache, Speculate: f.Speculate, SpeculateRecent: f.SpeculateRecent, DecodeSteps: f.DecodeSteps, Queue: f.Queue,
		StepDeadline: f.StepDeadline, LoadDeadline: f.LoadDeadline, SyncDeadline: f.SyncDeadline}, err
}

// listenFlags say where the API listens.
type listenFlags struct {
	Listen string  `default:"${server}" help:"Address of the API; port 0 takes a free one. Beyond loopback it needs --api-key."`
	APIKey apiKeys `name:"api-key" env:"SHOAL_API_KEY" placeholder:"KEY" help:"Keys that clients must send; several may be given. Their holders may do everything. With up, auto makes a key, keeps it in --data-dir and prints it."`

	APIKeys      string   `name:"api-keys" type:"path" placeholder:"FILE" help:"JSON file of keys with names, roles and limits (docs/operations.md); read again when it changes, and on SIGHUP."`
	TLSCert      string   `name:"tls-cert" type:"path" placeholder:"FILE" help:"Serve the API over TLS with this certificate chain (PEM); read again when it changes, and on SIGHUP."`
	TLSKey       string   `name:"tls-key" type:"path" placeholder:"FILE" help:"Private key of --tls-cert (PEM)."`
	AuditLog     string   `name:"audit-log" type:"path" placeholder:"FILE" help:"Append a JSON line for each request that may change something, or is refused for its key; opened again on SIGHUP."`
	OTLP         string   `name:"otlp" placeholder:"URL" help:"Send OpenTelemetry traces to the collector at URL (OTLP over HTTP, as http://127.0.0.1:4318); also on when OTEL_EXPORTER_OTLP_ENDPOINT is set."`
	AllowOrigin  []string `placeholder:"ORIGIN" help:"Web pages of this origin (https://chat.example.com, or * for every one) may use the API; others may not, and without API keys the API answers to no other name than localhost."`
	Strict       bool     `help:"Refuse requests with parameters that are not known, instead of naming them in a header."`
	ToolParser   string   `name:"tool-parser" placeholder:"FAMILY" help:"How the model writes calls of functions: hermes, llama3_json, pythonic, mistral, deepseek, json (default: by the chat template)."`
	ChatTemplate string   `name:"chat-template" type:"path" placeholder:"FILE" help:"Jinja chat template to use instead of the checkpoint's."`
}

// apiKeys are the values of --api-key.
type apiKeys []string

// Decode keeps an empty value, which Kong's own decoder of lists takes for no value: a
// variable that is not set must not open the API.
func (k *apiKeys) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("key", &text); err != nil {
		return err
	}
	keys := kong.SplitEscaped(text, ',')
	if len(keys) == 0 {
		keys = []string{text}
	}
	*k = append(*k, keys...)
	return nil
}

// check refuses an address that cannot be one, and one that would let everyone in.
func (f *listenFlags) check() error {
	for i, k := range f.APIKey {
		if strings.TrimSpace(k) == "" {
			return fmt.Errorf("--api-key: key %d of %d is empty and would let everyone in: set the variable that it comes from, or leave --api-key and SHOAL_API_KEY out", i+1, len(f.APIKey))
		}
	}
	if slices.Contains(f.APIKey, autoKey) { // up has replaced it where it is the only one
		return errors.New("--api-key auto makes a key for shoal up, and stands alone; give a key here")
	}
	if _, _, err := security.HostPort(f.Listen); err != nil {
		return fmt.Errorf("--listen %q is not HOST:PORT, as in 127.0.0.1:8080", f.Listen)
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key belong together: give both")
	}
	if bad, ok := api.CheckOrigins(f.AllowOrigin); !ok {
		return fmt.Errorf("--allow-origin %q is no origin, as https://chat.example.com is, or http://localhost:3000", bad)
	}
	keys, err := f.keys()
	if err != nil {
		return err
	}
	return security.CheckAPIBind(f.Listen, len(keys) > 0)
}

// scheme of the API's address.
func (f *listenFlags) scheme() string {
	if f.TLSCert != "" {
		return "https"
	}
	return "http"
}

// nodeFlags say what each node may use.
type nodeFlags struct {
	KVMemory size   `name:"kv-memory" help:"Memory of the caches, per node (default: 1GiB, or less: half of what this machine or container may use, shared by the nodes of this command)."`
	Draft    string `placeholder:"MODEL|mtp" help:"Guess what comes next with a small model of the same tokenizer (a folder, or org/name of a hub), or with the model's own layer of multi-token prediction (mtp, or a folder with mtp.safetensors). Every node has it whole, and a sixteenth of --kv-memory for its caches. Never changes a bit."`
	Threads  int    `help:"Compute threads per node, in every step (default: the processors, which up and demo share out; steps that decode have as many of them as proves fastest)."`

	WeightsCache     string `placeholder:"DIR|off" help:"Keep quantised weights in this folder, so that the next start is quick (default: shoal/weights in the user's cache directory)."`
	WeightsCacheSize size   `default:"64GiB" help:"Most bytes in that folder; what was not used for longest is removed."`

	PrefixDisk     string `type:"path" placeholder:"DIR" help:"Keep what was read of prompts in files of this folder as well, for prompts that begin alike after memory needed the room, or after a restart. They hold what users say, unencrypted. Never changes a bit (default: none)."`
	PrefixDiskSize size   `default:"64GiB" help:"Most bytes in that folder, of all nodes of this command together."`

	KVDisk     string `name:"kv-disk" type:"path" placeholder:"DIR" help:"When memory is short, move rows of long sequences whose policy reads few of them (shadowkv, quest) to files of this folder, which hold what users say, unencrypted, and end with the process. Never changes a bit (default: none)."`
	KVDiskSize size   `name:"kv-disk-size" default:"64GiB" help:"Most bytes of those files, of all nodes of this command together."`
}

// maxThreads is more than any machine has processors.
const maxThreads = 1024

// checkThreads refuses a number of compute threads; 0 asks for the default.
func checkThreads(n int) error {
	if n < 0 || n > maxThreads {
		return fmt.Errorf("--threads %d: want 1 to %d, or 0 for the default", n, maxThreads)
	}
	return nil
}

const (
	kvMemory      = 1 << 30
	kvMemoryLeast = 16 << 20
)

// kvBytes is the memory of each node's caches, for a number of nodes in this machine or
// container, which may use limit bytes (0: unknown). less tells that the default is smaller
// than on a large machine.
func (f *nodeFlags) kvBytes(nodes int, limit int64, from string) (bytes int64, less bool, err error) {
	part := limit / 2 / int64(nodes)
	if bytes = int64(f.KVMemory); bytes > 0 {
		if limit > 0 && bytes > limit/int64(nodes) {
			err = fmt.Errorf("--kv-memory %s for each of %s is more than %s may use (%s): give at most %s, or leave it out for %s", bytesText(bytes), plural(nodes, "node"), from, bytesText(limit), bytesText(limit/int64(nodes)), bytesText(min(kvMemory, max(part, kvMemoryLeast))))
		}
		return bytes, false, err
	}
	if limit == 0 || part >= kvMemory {
		return kvMemory, false, nil
	}
	return max(part, kvMemoryLeast), true, nil
}

// resolveKVMemory fills in KVMemory.
func (f *nodeFlags) resolveKVMemory(nodes int, log *slog.Logger) error {
	limit, from := machine.MemoryLimit()
	bytes, less, err := f.kvBytes(nodes, limit, from)
	if less {
		log.Info("caches are smaller than the default of 1 GiB, to fit the memory; --kv-memory sets them", "bytes_of_a_node", bytes, "nodes", nodes, "limit", limit, "of", from)
	}
	f.KVMemory = size(bytes)
	return err
}

// weightsCache is the folder of quantised weights, empty for none.
func (f *nodeFlags) weightsCache() string {
	switch f.WeightsCache {
	case "off":
		return ""
	case "":
		cache, err := os.UserCacheDir()
		if err != nil {
			return "" // no home: nothing is kept, unless it is asked for
		}
		return filepath.Join(cache, "shoal", "weights")
	}
	return f.WeightsCache
}

// logFlags choose what is logged.
type logFlags struct {
	LogLevel string `enum:"debug,info,warn,error" default:"info" help:"Least level that is logged: debug, info, warn, error."`
	LogJSON  bool   `name:"log-json" help:"Log as JSON."`
}
