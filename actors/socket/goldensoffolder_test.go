package socket

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

var goldenFolders = flag.String("goldens", "", "`directory` of folders with a model and goldens.json each, written by train/goldens_random.py")

// TestGoldensOfFolder compares models that are not in the tree with their goldens.json. A model that
// cannot be opened is logged: its error must name a setting that is refused on purpose.
func TestGoldensOfFolder(t *testing.T) {
	if *goldenFolders == "" {
		t.Skip("-goldens names no directory")
	}
	files, err := filepath.Glob(filepath.Join(*goldenFolders, "*", "goldens.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens in %s (%v)", *goldenFolders, err)
	}
	refused, worst := 0, 0.0
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			ck, err := checkpoint.Open(dir)
			if err != nil {
				refused++
				t.Logf("refused: %v", err)
				return
			}
			if err := ck.Close(); err != nil {
				t.Fatal(err)
			}
			far := farthest(t, readGoldens(t, dir), rigConfig{dir: dir, sockets: 1 + len(dir)%3, mapping: topology.Gather, kv: tensor.F32})
			if worst = max(worst, far); far > 1e-4 {
				config, _ := os.ReadFile(filepath.Join(dir, "config.json"))
				t.Errorf("log-probabilities differ by up to %.2g\n%s", far, config)
			}
		})
	}
	t.Logf("%d models compared, the largest difference is %.2g; %d refused", len(files)-refused, worst, refused)
}

// farthest returns the largest difference of the log-probabilities after the prompts. It fails if
// greedy tokens differ.
func farthest(t *testing.T, g goldens, c rigConfig) (worst float64) {
	t.Helper()
	r := newRig(t, c)
	var reqs []*request
	for i, it := range g.Items {
		reqs = append(reqs, &request{prompt: it.Prompt, max: max(1, len(it.Greedy)), owner: i, params: greedy(len(it.Logits))})
	}
	r.generate(64, reqs...)
	for i, it := range g.Items {
		if !slices.Equal(reqs[i].tokens[:len(it.Greedy)], it.Greedy) {
			t.Errorf("prompt %d: got %v, want %v", i, reqs[i].tokens, it.Greedy)
		}
		top, sum := slices.Max(it.Logits), 0.0
		for _, v := range it.Logits {
			sum += math.Exp(v - top)
		}
		for _, p := range reqs[i].scores[0].Drawn[0].Top {
			worst = max(worst, math.Abs(float64(p.Logprob)-(it.Logits[p.Token]-top-math.Log(sum))))
		}
	}
	return worst
}
