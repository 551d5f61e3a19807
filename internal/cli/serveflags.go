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

// serveFlags configure the model and the scheduler.
type serveFlags struct {
	modelFlag
	ModelName    []string           `placeholder:"NAME" help:"Names of the model in the API (default: the name of the folder)."`
	Quant        quantType          `env:"SHOAL_QUANT" default:"" placeholder:"TYPE" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl. auto, or no value, chooses the largest of bf16, q8_0 and q4_0 that fits (default: as stored). Changes the output."`
	KVType       string             `name:"kv-type" placeholder:"TYPE" help:"Type of the cache: f32, bf16, int8 (default: bf16 for bf16 weights). Changes the output."`
	Shares       map[string]float64 `mapsep:"," placeholder:"NODE=X,..." help:"Relative shares of the work, by node name. The default for a node is its --share, or its measured memory bandwidth in units of 10 GB/s. It is at most twice that bandwidth, and twice the median of the other nodes."`
	Mapping      string             `default:"auto" help:"How attention weights are split over the nodes: gather, reduce, auto. Does not change the output."`
	Policy       string             `default:"full" help:"Default cache policy of requests: ${policies}."`
	MaxContext   int                `placeholder:"TOKENS" help:"Maximum tokens of prompt and completion together (default: the model's)."`
	StepTokens   int                `default:"512" help:"Maximum tokens in one step, for decode and prompt chunks together."`
	Chunk        int                `placeholder:"TOKENS" help:"Maximum prompt tokens of one sequence in one step (default: 128 to 512, from the measured speed of the nodes). Does not change the output."`
	MaxSequences int                `placeholder:"N" help:"Maximum number of sequences with a cache in memory (default: 64)."`
	Replicas     int                `placeholder:"N" default:"0" help:"Copies of each decoding sequence's cache on other nodes, 0 or 1, in otherwise unused memory. With 1, no prompt is computed again after the loss of a node."`
	PrefixCache  string             `default:"on" help:"Reuse the cache of prompts with a common prefix: on (within one API key), shared (across all keys), off. Uses only memory that no sequence needs. Does not change the output."`
	Speculate    string             `default:"suffix" help:"Default speculative decoding of requests: suffix (the most frequent continuation, in recent answers too), lookup (the latest continuation of the same tokens), model (suffix, or the model of --draft; the default with --draft), off. The draft length adapts; suffix:N fixes it at N. Does not change the output."`

	SpeculateRecent string `default:"key" help:"Recent answers that --speculate suffix drafts from: key (the same API key), shared (all keys), off. With shared, the speed of an answer reveals text of other keys."`

	DecodeSteps int `placeholder:"N" help:"Maximum tokens that a sequence decodes before the nodes ask the coordinator for the next plan, within 50 ms (default: 8). 1 asks after every token. Does not change the output."`

	Queue        int           `default:"1024" help:"Maximum number of waiting requests. Further requests get status 503."`
	StepDeadline time.Duration `default:"5s" help:"Time without progress in a step, while other nodes wait, after which a node is excluded temporarily. A step that takes six times this long ends the epoch."`
	LoadDeadline time.Duration `default:"1m" help:"Time without progress in loading weights, while other nodes progress, after which a node is excluded temporarily."`
	SyncDeadline time.Duration `default:"10s" help:"Time limit for a collective. A longer one fails the step."`
}

// warn logs the parts of the checkpoint that are not used.
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

// listenFlags configure the API server.
type listenFlags struct {
	Listen string  `default:"${server}" help:"Address of the API; port 0 chooses a free port. An address other than loopback needs --api-key."`
	APIKey apiKeys `name:"api-key" env:"SHOAL_API_KEY" placeholder:"KEY" help:"Keys that clients must send; repeat the flag for several. These keys have all permissions. With shoal up, auto generates a key, stores it in --data-dir and prints it."`

	APIKeys      string   `name:"api-keys" type:"path" placeholder:"FILE" help:"JSON file of keys with names, roles and limits (docs/operations.md). It is reloaded when it changes, and on SIGHUP."`
	TLSCert      string   `name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate chain (PEM) for TLS on the API. It is reloaded when it changes, and on SIGHUP."`
	TLSKey       string   `name:"tls-key" type:"path" placeholder:"FILE" help:"Private key of --tls-cert (PEM)."`
	AuditLog     string   `name:"audit-log" type:"path" placeholder:"FILE" help:"Append a JSON line to this file for each request that can change something, or whose key is refused. The file is reopened on SIGHUP."`
	OTLP         string   `name:"otlp" placeholder:"URL" help:"URL of an OpenTelemetry collector for traces (OTLP over HTTP), such as http://127.0.0.1:4318 (default: OTEL_EXPORTER_OTLP_ENDPOINT)."`
	AllowOrigin  []string `placeholder:"ORIGIN" help:"Origin whose web pages can use the API, such as https://chat.example.com; * allows all. Other origins are refused. Without API keys, localhost is the only host name that the API accepts."`
	Strict       bool     `help:"Refuse requests with unknown parameters, instead of naming these in a header."`
	ToolParser   string   `name:"tool-parser" placeholder:"FAMILY" help:"Format of the model's tool calls: hermes, llama3_json, pythonic, mistral, deepseek, json (default: from the chat template)."`
	ChatTemplate string   `name:"chat-template" type:"path" placeholder:"FILE" help:"File of a Jinja chat template (default: the checkpoint's)."`
}

// apiKeys are the values of --api-key.
type apiKeys []string

// Decode keeps an empty value, which Kong's decoder of lists would drop. A shell variable that is
// not set must not open the API to everyone.
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

// check refuses invalid flags, and an address that would open the API to everyone.
func (f *listenFlags) check() error {
	for i, k := range f.APIKey {
		if strings.TrimSpace(k) == "" {
			return fmt.Errorf("--api-key: key %d of %d is empty and would open the API to everyone: set its variable, or remove --api-key and SHOAL_API_KEY", i+1, len(f.APIKey))
		}
	}
	if slices.Contains(f.APIKey, autoKey) { // shoal up has already replaced a single auto
		return errors.New("--api-key auto is for shoal up, as the only key; set a key here")
	}
	if _, _, err := security.HostPort(f.Listen); err != nil {
		return fmt.Errorf("--listen %q is not HOST:PORT, such as 127.0.0.1:8080", f.Listen)
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key must be set together")
	}
	if bad, ok := api.CheckOrigins(f.AllowOrigin); !ok {
		return fmt.Errorf("--allow-origin %q is not an origin such as https://chat.example.com or http://localhost:3000", bad)
	}
	keys, err := f.keys()
	if err != nil {
		return err
	}
	return security.CheckAPIBind(f.Listen, len(keys) > 0)
}

// scheme returns the URL scheme of the API.
func (f *listenFlags) scheme() string {
	if f.TLSCert != "" {
		return "https"
	}
	return "http"
}

// nodeFlags set the resources of each node.
type nodeFlags struct {
	KVMemory size   `name:"kv-memory" help:"Memory of the caches, per node (default: 1GiB, or half of the memory limit of this machine or container divided by the nodes of this command, if that is less)."`
	Draft    string `placeholder:"MODEL|mtp" help:"Draft model for speculative decoding: a small model with the same tokenizer (a folder, or org/name of a hub), or the model's own multi-token prediction layer (mtp, or a folder with mtp.safetensors). Every node holds all of it, and uses 1/16 of --kv-memory for its caches. Does not change the output."`
	Threads  int    `help:"Compute threads per node. Default: all CPUs, which up and demo divide evenly; decode steps use the number that measures fastest."`

	WeightsCache     string `placeholder:"DIR|off" help:"Folder for quantised weights, which makes the next start faster; off disables it (default: shoal/weights in the user's cache directory)."`
	WeightsCacheSize size   `default:"64GiB" help:"Maximum size of that folder. The least recently used files are removed first."`

	PrefixDisk     string `type:"path" placeholder:"DIR" help:"Folder for the prefix cache on disk, which outlives eviction from memory and restarts. Its files hold the text of users, unencrypted. Does not change the output (default: none)."`
	PrefixDiskSize size   `default:"64GiB" help:"Maximum size of that folder, for all nodes of this command together."`

	KVDisk     string `name:"kv-disk" type:"path" placeholder:"DIR" help:"Folder for cache rows of long sequences when memory is short, for policies that read few rows (shadowkv, quest). Its files hold the text of users, unencrypted, and are removed with the process. Does not change the output (default: none)."`
	KVDiskSize size   `name:"kv-disk-size" default:"64GiB" help:"Maximum size of these files, for all nodes of this command together."`
}

// maxThreads is an upper bound for the CPUs of a machine.
const maxThreads = 1024

// checkThreads refuses an invalid number of compute threads; 0 means the default.
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

// kvBytes returns the memory for the caches of each node. The machine or container may use limit
// bytes for all nodes; 0 means unknown. less reports that the limit reduced the default.
func (f *nodeFlags) kvBytes(nodes int, limit int64, from string) (bytes int64, less bool, err error) {
	part := limit / 2 / int64(nodes)
	if bytes = int64(f.KVMemory); bytes > 0 {
		if limit > 0 && bytes > limit/int64(nodes) {
			err = fmt.Errorf("--kv-memory %s for each of %s is more than %s may use (%s): set at most %s, or remove the flag to use %s", bytesText(bytes), plural(nodes, "node"), from, bytesText(limit), bytesText(limit/int64(nodes)), bytesText(min(kvMemory, max(part, kvMemoryLeast))))
		}
		return bytes, false, err
	}
	if limit == 0 || part >= kvMemory {
		return kvMemory, false, nil
	}
	return max(part, kvMemoryLeast), true, nil
}

// resolveKVMemory sets KVMemory to its default if the flag is not set, and checks it.
func (f *nodeFlags) resolveKVMemory(nodes int, log *slog.Logger) error {
	limit, from := machine.MemoryLimit()
	bytes, less, err := f.kvBytes(nodes, limit, from)
	if less {
		log.Info("caches are smaller than 1 GiB to fit the memory limit; --kv-memory sets their size", "bytes_of_a_node", bytes, "nodes", nodes, "limit", limit, "of", from)
	}
	f.KVMemory = size(bytes)
	return err
}

// weightsCache returns the folder of quantised weights, or "" for none.
func (f *nodeFlags) weightsCache() string {
	switch f.WeightsCache {
	case "off":
		return ""
	case "":
		cache, err := os.UserCacheDir()
		if err != nil {
			return "" // without a home directory only --weights-cache enables it
		}
		return filepath.Join(cache, "shoal", "weights")
	}
	return f.WeightsCache
}

// processFlags set the place of a coordinator or node in its cluster.
type processFlags struct {
	ID      string   `name:"id" help:"Name of this process in the cluster (default: coordinator, standby with --standby; of a node, host name and process ID)."`
	Join    []string `placeholder:"HOST:PORT" help:"Gossip addresses of a running cluster, of any of its processes; with --token, the address that the first machine printed (default: those of the cluster that this machine joined with a token)."`
	Bind    string   `placeholder:"HOST:PORT" help:"Gossip address, which other processes join; port 0 chooses a free port. An address other than loopback needs a cluster key (default: of a coordinator, 127.0.0.1:7070; of a node, 127.0.0.1:0, or with a token the local address of the route to the first machine)."`
	Ports   int      `default:"0" placeholder:"FIRST" help:"First of four consecutive ports on the host of --bind: control, routes, tensors, store (default: free ports)."`
	NATS    string   `name:"nats" placeholder:"URL" help:"Use an external NATS instead of the embedded mesh."`
	DataDir string   `env:"SHOAL_DATA_DIR" type:"path" placeholder:"DIR" help:"Folder for jobs, batches and files, which a restarted coordinator continues; of a node, for a copy of them and of the placement, which three processes replicate (default: none; a coordinator then refuses jobs)."`
}

// logFlags set the level and the format of the log.
type logFlags struct {
	LogLevel string `enum:"debug,info,warn,error" default:"info" help:"Minimum level to log: debug, info, warn, error."`
	LogJSON  bool   `name:"log-json" help:"Write the log as JSON lines."`
}
