package jinja

import (
	"errors"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// The byte limit counts allocations. The actual total, including garbage, is at most a few times
// the limit.
func TestBytesAreCountedBeforeTheyAreTaken(t *testing.T) {
	const limit = 16 << 20
	vars := python.NewDict()
	vars.Set("x", python.Literal("a"))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, source := range map[string]string{
		"replace between":        `{{ ('a' * 8000000).replace('', 'b') }}`,
		"replace between marked": `{{ (x * 400000).replace('', x) }}`,
		"replace":                `{{ ('a' * 4000000).replace('a', 'bbbb') }}`,
		"replace by marked":      `{{ ('ab' * 2000000).replace('a', x) }}`,
		"filter":                 `{{ ('a' * 8000000)|replace('', 'b') }}`,
		"list":                   `{{ ('a' * 8000000)|list|length }}`,
		"reverse":                `{{ ('a' * 8000000)|reverse|length }}`,
		"loop":                   `{% for c in 'a' * 8000000 %}{% endfor %}`,
		"slice":                  `{{ ('a' * 8000000)[::-1]|length }}`,
	} {
		before := allocated()
		_, err := render(t, source, vars, Options{Limits: python.Limits{Steps: 1 << 40, Bytes: limit, Output: limit}})
		took := allocated() - before
		if took > 8*limit {
			t.Errorf("%s: %d MiB were allocated under a limit of %d MiB (%v)", name, took>>20, limit>>20, err)
		}
		if err != nil && !errors.Is(err, python.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
