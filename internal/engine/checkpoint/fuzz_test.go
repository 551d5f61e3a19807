package checkpoint_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// The fuzzers of whole checkpoints start from tiny ones of every architecture. Only the header of a
// file is an input. Its data is zeros, as long as the original header said, so that mutations
// always hit the header.

// maxFuzzedData bounds the data after a fuzzed header.
const maxFuzzedData = 1 << 20

// tried opens a fuzzer's file and reads it completely.
func tried(t *testing.T, path string) {
	c, err := checkpoint.Open(path)
	if err != nil {
		if !strings.HasPrefix(err.Error(), "model: ") || len(err.Error()) > 4000 {
			t.Error(err)
		}
		return
	}
	defer c.Close()
	readAll(t, c)
	if _, err := c.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// FuzzGGUFHeader: for any header, opening the file ends in a readable model or an error.
func FuzzGGUFHeader(f *testing.F) {
	for _, name := range ggufs() {
		hub := open(f, tinyFolder(f, name))
		for _, typ := range []gguf.Type{gguf.F32, gguf.Q8_0, gguf.BF16} {
			head, size := header(modeltest.Convert(hub, fitting(hub, typ)))
			f.Add(head, uint32(size))
		}
	}
	path := filepath.Join(f.TempDir(), "m.gguf")
	f.Fuzz(func(t *testing.T, header []byte, size uint32) {
		put(t, path, header)
		if err := os.Truncate(path, int64(len(header))+int64(size%(maxFuzzedData+1))); err != nil {
			t.Fatal(err)
		}
		tried(t, path)
	})
}

// fitting returns typ for matrices whose rows are whole blocks of it, otherwise F32. It decides by
// name, since Convert passes only names.
func fitting(c *checkpoint.Checkpoint, typ gguf.Type) func(string) gguf.Type {
	return func(name string) gguf.Type {
		for _, narrow := range []string{"attn_output", "ffn_down", "attn_q_b", "attn_kv_b"} { // rows narrower than hidden
			if strings.Contains(name, narrow) {
				return gguf.F32
			}
		}
		if c.Config.Hidden%typ.Block() != 0 {
			return gguf.F32
		}
		return typ
	}
}

// FuzzOpenGGUF: whole files, including data, with every type of tensor.
func FuzzOpenGGUF(f *testing.F) {
	shape := modeltest.Small()
	shape.Hidden, shape.Layers, shape.Heads, shape.KVHeads, shape.HeadDim, shape.FFN, shape.Vocab = 256, 1, 1, 1, 8, 8, 4
	hub := open(f, write(f, shape, 1))
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K} {
		f.Add(modeltest.Convert(hub, fitting(hub, typ)).Bytes())
	}
	shape.Experts = 3
	f.Add(modeltest.Convert(open(f, write(f, shape, 1)), fitting(hub, gguf.Q8_0)).Bytes())
	path := filepath.Join(f.TempDir(), "m.gguf")
	f.Fuzz(func(t *testing.T, data []byte) {
		put(t, path, data)
		tried(t, path)
	})
}

// FuzzFolder: a config and the header of its weights.
func FuzzFolder(f *testing.F) {
	for _, name := range model.Architectures() {
		dir := tinyFolder(f, name)
		addFolder(f, dir)
		quantized, plain := f.TempDir(), f.TempDir()
		check(f, modeltest.FP8(open(f, dir), 16, 16, quantized, plain))
		addFolder(f, quantized)
		addFolder(f, plain)
	}
	for _, dir := range quantizedFolders(f) {
		addFolder(f, dir)
	}
	addFolder(f, seeing(f, tinyFolder(f, "Gemma3ForCausalLM"), older))
	dir := f.TempDir()
	weights := filepath.Join(dir, "model.safetensors")
	f.Fuzz(func(t *testing.T, config, header []byte, size uint32) {
		put(t, filepath.Join(dir, "config.json"), config)
		put(t, weights, length(uint64(len(header)), string(header)))
		if err := os.Truncate(weights, 8+int64(len(header))+int64(size%(maxFuzzedData+1))); err != nil {
			t.Fatal(err)
		}
		tried(t, dir)
	})
}

func addFolder(f *testing.F, dir string) {
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	check(f, err)
	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	check(f, err)
	_, data := modeltest.Parts(file)
	f.Add(config, file[8:len(file)-len(data)], uint32(len(data)))
}
