package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/safetensors"
)

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":10},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../../etc/passwd"}}`))
	f.Add([]byte(`{"weight_map":{"a":"/abs.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":".safetensors","b":"..\\x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, where, err := parseIndex(data)
		if err != nil {
			return
		}
		for name, file := range where {
			if !slices.Contains(files, file) || len(name) > safetensors.MaxNameBytes {
				t.Fatalf("tensor %q of %q, not in %v", name, file, files)
			}
		}
		for _, file := range files {
			if file == "" || strings.ContainsAny(file, `/\`) || file == "." || file == ".." {
				t.Fatalf("accepted file %q", file)
			}
		}
	})
}
