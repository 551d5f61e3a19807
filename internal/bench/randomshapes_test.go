package bench

import (
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// Random shapes that are described as config.json are the models of that name for shoal plan.
func TestRandomShapesArePlanned(t *testing.T) {
	for _, name := range []string{"gemma-4-e2b", "gpt-oss-20b", "qwen3.5-35b-a3b"} {
		random, err := checkpoint.Random(name)
		if err != nil {
			t.Fatal(err)
		}
		planned, err := PlanShape(name)
		if err != nil {
			t.Fatal(err)
		}
		got, want := random.Config, planned.Config
		got.Sinks, want.Sinks = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
