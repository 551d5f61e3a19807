package models

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/hub"
)

func TestPullBar(t *testing.T) {
	for want, g := range map[string]hub.Progress{
		"org/m [                        ] asking for the list of files": {Model: "org/m"},
		"org/m [============            ] 50% of 4.00 GiB, 1.0 MiB/s, 34m8s left": {Model: "org/m",
			Done: 2 << 30, Total: 4 << 30, Rate: 1 << 20, Left: 34*time.Minute + 8*time.Second},
		"org/m [========================] 100% of 1.0 KiB": {Model: "org/m", Done: 2000, Total: 1024},
		"org/m [                        ] 0% of 1.0 KiB, another process fetches x": {Model: "org/m",
			Total: 1024, Waiting: "another process fetches x"},
		"...tion/a-model-of-a-long-name [                        ] a reason": {Model: "a-corporation/a-model-of-a-long-name",
			Waiting: "a reason"},
	} {
		if got := pullBar(g); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
