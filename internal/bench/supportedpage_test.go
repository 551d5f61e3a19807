package bench

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

var updatePage = flag.Bool("update", false, "write the generated sections of docs/supported-models.md")

const supportedPage = "../../docs/supported-models.md"

// TestSupportedModelsPage compares the sections of docs/supported-models.md with the output of the planner
// and the list of architectures. With -update it writes them.
func TestSupportedModelsPage(t *testing.T) {
	text, err := os.ReadFile(supportedPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for name, section := range map[string]string{"memory": memorySection(t), "downloads": downloadsSection(t)} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, found := strings.Cut(page, begin)
		old, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no section between %q and %q", supportedPage, begin, end)
		}
		if old != section && !*updatePage {
			t.Errorf("the section %q of %s is out of date; run: go test ./internal/bench -run SupportedModelsPage -update\nhave:\n%swant:\n%s",
				name, supportedPage, old, section)
		}
		page = before + begin + section + end + after
	}
	if *updatePage {
		if err := os.WriteFile(supportedPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// memorySection is a table of all named models by size, with the memory of their weights on one
// node and the largest type of weights that fits in a machine.
func memorySection(t *testing.T) string {
	var models []PlanModel
	for _, name := range PlanShapes() {
		m, err := PlanShape(name)
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, m)
	}
	slices.SortFunc(models, func(a, b PlanModel) int {
		return cmp.Or(cmp.Compare(a.Parameters, b.Parameters), strings.Compare(a.Name, b.Name))
	})
	var b strings.Builder
	b.WriteString("| model | `bf16`, GiB | `q8_0` | `q4_0`, `iq4_nl` | cache of 1,000 tokens, MiB | largest type on 16, 32, 64 GB |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range models {
		cache := func(tokens int) int64 {
			return kvcache.ResidentBytes(shard.GeometryOf(&m.Config, tensor.BF16), tokens, tokens, kvcache.Full())
		}
		fmt.Fprintf(&b, "| `%s`", m.Name)
		for _, weights := range []tensor.DType{tensor.BF16, tensor.Q8_0, tensor.Q4_0} {
			fmt.Fprintf(&b, " | %s", gibText(oneNode(t, m, weights).Weights))
		}
		var largest []string
		for _, machine := range []int64{16e9, 32e9, 64e9} {
			largest = append(largest, largestType(t, m, machine, cache(min(8192, m.Config.MaxPositions))))
		}
		if largest[0] == largest[2] {
			largest = largest[:1]
		}
		fmt.Fprintf(&b, " | %d | %s |\n", (cache(1000)+1<<19)>>20, strings.Join(largest, ", "))
	}
	return b.String()
}

func oneNode(t *testing.T, m PlanModel, weights tensor.DType) NodeMemory {
	h, err := NodeBytes(m, PlanOptions{Sockets: 1, Weights: weights, Mapping: topology.Gather, Rows: 512})
	if err != nil {
		t.Fatalf("%s: %v", m.Name, err)
	}
	return h
}

// largestType returns the largest type of weights that fits with the cache in 15 of 16 parts of a
// machine's memory, as --quant auto chooses it.
func largestType(t *testing.T, m PlanModel, machine, cache int64) string {
	for _, weights := range []tensor.DType{tensor.BF16, tensor.Q8_0, tensor.Q4_0} {
		if h := oneNode(t, m, weights); h.Weights+h.Embedding+h.Workspace+cache <= machine/16*15 {
			return weights.String()
		}
	}
	return "no"
}

func gibText(n int64) string {
	if g := float64(n) / (1 << 30); g < 100 {
		return fmt.Sprintf("%.1f", g)
	}
	return fmt.Sprintf("%d", (n+1<<29)>>30)
}

// downloadsSection gives the share of downloads that this build serves, and the share of each kind of
// model.
func downloadsSection(t *testing.T) string {
	text, err := os.ReadFile("testdata/downloads.json")
	if err != nil {
		t.Fatal(err)
	}
	var downloads struct {
		Source     string
		Generative float64
		Kinds      []struct {
			Name          string
			Share         float64
			Architectures []string
		}
	}
	if err := json.Unmarshal(text, &downloads); err != nil {
		t.Fatal(err)
	}
	sum, rows := 0.0, "| models | share of all downloads |\n| --- | --- |\n"
	for _, k := range downloads.Kinds {
		share := fmt.Sprintf("%.1f %%", k.Share)
		if slices.ContainsFunc(k.Architectures, unknownArchitecture) {
			share += ", not served"
		} else {
			sum += k.Share
		}
		rows += fmt.Sprintf("| %s | %s |\n", k.Name, share)
	}
	return fmt.Sprintf("Shoal serves %.0f %% of the downloads of generative models, which are %.0f %% of all downloads. "+
		"The others are embedding and vision models.\n\n%s\n%s\n", 100*sum/downloads.Generative, downloads.Generative, rows, downloads.Source)
}

// unknownArchitecture reports whether a config is refused because of its architecture.
func unknownArchitecture(name string) bool {
	_, err := model.ParseConfig("", fmt.Appendf(nil, `{"architectures": [%q], "text_config": {}}`, name), nil)
	return err != nil && strings.Contains(err.Error(), fmt.Sprintf("architecture %q is not supported", name))
}
