package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestAnswers compares a part of what `make answers` does.
func TestAnswers(t *testing.T) {
	only := regexp.MustCompile(`^(llama f32 bf16|mistral_window bf16 int8|deepseek_v2 q8_0 f32|random_odd f16)`)
	before, err := readRecord("testdata/answers.txt")
	if err != nil {
		t.Fatal(err)
	}
	now, err := runAll("../..", only, 2)
	if err != nil {
		t.Fatal(err)
	}
	before.keep(only)
	d := before.differences(now)
	if bad := slices.Concat(d.differ, d.gone); len(bad) > 0 || d.same < 60 {
		t.Errorf("%d answers are the same; if bits change on purpose, `go run ./test/answers -record test/answers/testdata/answers.txt`", d.same)
		for _, line := range d.lines() {
			t.Log(line)
		}
	}
}

// TestDifferences: what a record says of another.
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
