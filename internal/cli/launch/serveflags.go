package launch

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// ServeFlags configure the model and the scheduler.
type ServeFlags struct {
	modelsFlag
	Quant models.Quant        `env:"SHOAL_QUANT" default:"" placeholder:"TYPE" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4. auto, or no value, chooses the largest of the stored type, bf16, q8_0 and q4_0 that fits (default: as stored). Changes the output."`
	Serve cluster.ServeConfig `embed:""`
}

// warn logs the parts of the checkpoint that are not used.
func (f *ServeFlags) warn(dir string, log *slog.Logger) {
	if note := models.AdapterNote(dir); note != "" {
		log.Warn(note)
	}
}

// adapterFolders finds the folders of LoRA adapters, which are named as models are.
func adapterFolders(e *ui.Env, named map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(named))
	for name, word := range named {
		dir, err := models.FindFiles(e, word)
		if err != nil {
			return nil, fmt.Errorf("--lora %s=%s: %w", name, word, err)
		}
		if dir == "" || !lora.IsFolder(dir) {
			return nil, fmt.Errorf("--lora %s=%s: want a folder with adapter_config.json and adapter_model.safetensors, or org/name of a hub",
				name, word)
		}
		if out[name], err = filepath.Abs(dir); err != nil {
			return nil, err
		}
	}
	return out, nil
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
	ToolParser   string   `name:"tool-parser" placeholder:"FAMILY" help:"Format of the model's tool calls: hermes, llama3_json, pythonic, mistral, deepseek, gemma, kimi, phi, nemotron, glm, minimax, seed, dsml, lfm2, harmony, cohere, command-r, json (default: from the chat template)."`
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
			return fmt.Errorf("--api-key: key %d of %d is empty and would open the API to everyone: set its variable, or remove --api-key and "+
				"SHOAL_API_KEY", i+1, len(f.APIKey))
		}
	}
	if slices.Contains(f.APIKey, AutoKey) { // shoal up has already replaced a single auto
		return errors.New("--api-key auto is for shoal up, as the only key; set a key here")
	}
	if _, _, err := security.HostPort(f.Listen); err != nil {
		return fmt.Errorf("--listen %q is not HOST:PORT, such as 127.0.0.1:8080", f.Listen)
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key must be set together")
	}
	if bad, ok := httpserver.CheckOrigins(f.AllowOrigin); !ok {
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

// NodeFlags set the resources of each node.
type NodeFlags struct{ cluster.Resources }

const (
	kvMemory      = 1 << 30
	kvMemoryLeast = 16 << 20
)

// kvBytes returns the memory for the caches of each node. The machine or container may use limit
// bytes for all nodes; 0 means unknown. less reports that the limit reduced the default.
func (f *NodeFlags) kvBytes(nodes int, limit int64, from string) (bytes int64, less bool, err error) {
	part := limit / 2 / int64(nodes)
	if bytes = f.KVMemory; bytes > 0 {
		if limit > 0 && bytes > limit/int64(nodes) {
			err = fmt.Errorf("--kv-memory %s for each of %s is more than %s may use (%s): set at most %s, or remove the flag to use %s",
				options.SizeText(bytes), ui.Plural(nodes, "node"), from, options.SizeText(limit), options.SizeText(limit/int64(nodes)),
				options.SizeText(min(kvMemory, max(part, kvMemoryLeast))))
		}
		return bytes, false, err
	}
	if limit == 0 || part >= kvMemory {
		return kvMemory, false, nil
	}
	return max(part, kvMemoryLeast), true, nil
}

// resolveKVMemory sets KVMemory to its default if the flag is not set, and checks it.
func (f *NodeFlags) resolveKVMemory(nodes int, log *slog.Logger) error {
	limit, from := machine.MemoryLimit()
	bytes, less, err := f.kvBytes(nodes, limit, from)
	if less {
		log.Info("caches are smaller than 1 GiB to fit the memory limit; --kv-memory sets their size", "bytes_of_a_node", bytes,
			"nodes", nodes, "limit", limit, "of", from)
	}
	f.KVMemory = bytes
	return err
}

// weightsCache returns the folder of quantized weights, or "" for none.
func (f *NodeFlags) weightsCache() string { return models.WeightsCacheDir(f.WeightsCache) }

// LogFlags set the level and the format of the log.
type LogFlags struct {
	LogLevel string `enum:"debug,info,warn,error" default:"info" help:"Minimum level to log: debug, info, warn, error."`
	LogJSON  bool   `name:"log-json" help:"Write the log as JSON lines."`
}

// defaultServer is the default address of the API.
const defaultServer = "127.0.0.1:8080"
