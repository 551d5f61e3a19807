package answers

import (
	"flag"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"
)

var (
	only     = flag.String("only", `^(llama f32 bf16|mistral_window bf16 int8|deepseek_v2 q8_0 f32|random_odd f16)`, "answers whose \"model weights cache\" matches this `regexp` only")
	recordTo = flag.String("record", "", "write the answers to this `file` instead of comparing them")
	compare  = flag.String("compare", ofTree, "compare with the answers in this `file`")
	device   = flag.String("device", "", "compute on this graphics card (cuda:N); compares answers that it supports; needs CGO_ENABLED=0")
	workers  = flag.Int("workers", runtime.GOMAXPROCS(0), "maximum number of clusters that run at the same time")
)

// ofTree is the record of this tree. It must be complete.
const ofTree = "testdata/answers.txt"

// TestAnswers compares a part of the answers, or those that the flags select.
func TestAnswers(t *testing.T) {
	match, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	before := newRecord()
	if *recordTo == "" {
		if before, err = readRecord(*compare); err != nil {
			t.Fatal(err)
		}
	}
	now, err := runAll("../..", match, *workers)
	if err != nil {
		t.Fatal(err)
	}
	if *recordTo != "" {
		if err := now.write(*recordTo); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d answers recorded, each in up to %d ways", len(now.order), len(cuts))
		return
	}
	before.keep(match)
	if *device != "" {
		before.keepOf(now)
	}
	d := before.differences(now)
	for _, line := range d.lines() {
		t.Log(line)
	}
	t.Logf("%d answers compared: %d the same, %d differ, %d are gone, %d are new", len(now.order),
		d.same, len(d.differ), len(d.missing), len(d.fresh))
	if len(d.differ)+len(d.missing) > 0 || d.same == 0 || len(d.fresh) > 0 && *compare == ofTree {
		t.Error("if bits change on purpose, or rows were added: go test ./test/answers -only . -record testdata/answers.txt")
	}
}

// TestDifferences compares records with known differences.
func TestDifferences(t *testing.T) {
	a := answer{ids: []int32{5, 6, 7}, hashes: []uint32{1, 2, 3}}
	before, now := newRecord(), newRecord()
	for _, name := range []string{"same", "id", "bits", "short", "cuts", "gone"} {
		before.add(key{"m f32 f32", name}, a, "")
	}
	path := filepath.Join(t.TempDir(), "r")
	if err := before.write(path); err != nil {
		t.Fatal(err)
	}
	before, err := readRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]answer{
		"same": a, "cuts": a, "fresh": a,
		"id":    {ids: []int32{5, 9, 7}, hashes: []uint32{1, 4, 5}},
		"bits":  {ids: a.ids, hashes: []uint32{1, 2, 4}},
		"short": {ids: []int32{5, 6}, hashes: []uint32{1, 2}},
	} {
		now.add(key{"m f32 f32", name}, b, "1 node")
	}
	now.add(key{"m f32 f32", "cuts"}, answer{ids: a.ids, hashes: []uint32{8, 2, 3}}, "3 nodes")
	d := before.differences(now)
	got := d.lines()
	slices.Sort(got)
	want := []string{
		"DIFFERS m f32 f32: bits: token 2 is 7 as before, with other log probabilities",
		"DIFFERS m f32 f32: cuts: not the same on 3 nodes: token 0 is 5 as before, with other log probabilities",
		"DIFFERS m f32 f32: id: token 1 was 6 and is 9",
		"DIFFERS m f32 f32: short: 2 tokens were 3",
		"GONE    m f32 f32: gone",
		"new     m f32 f32: fresh",
	}
	if !slices.Equal(got, want) || d.same != 1 {
		t.Errorf("%d the same, and %q; want 1 and %q", d.same, got, want)
	}
	if err := now.write(path); err == nil {
		t.Error("a record was written of cuts that do not agree")
	}
}
