package wiretest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompare: a record names every format that changed, appeared or went.
func TestCompare(t *testing.T) {
	a, b := Form{"header", "01\n02"}, Form{"row", "03"}
	record := text([]Form{a, b})
	for _, c := range []struct {
		name  string
		forms []Form
		want  []string
	}{
		{"the same", []Form{a, b}, nil},
		{"a byte changed", []Form{a, {"row", "04"}}, []string{"only in the record: 03\n\tonly in this build: 04"}},
		{"a line is added", []Form{a, {"row", "03\n05"}}, []string{":\n\tonly in this build: 05"}},
		{"a line is added that the record has", []Form{{"header", "01\n02\n01"}, b}, []string{":\n\tonly in this build: 01"}},
		{"the order changed", []Form{{"header", "02\n01"}, b}, []string{`"header" differs from the record of wire version`}},
		{"a format is new", []Form{a, b, {"post", "05"}}, []string{`"post" is not in the record`}},
		{"a format is gone", []Form{a}, []string{`"row" of wire version`}},
	} {
		got := compare(record, c.forms)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", c.name, got)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q lacks %q", c.name, got[i], want)
			}
		}
	}
	if got := compare("", []Form{a}); len(got) != 1 || !strings.Contains(got[0], "no record") {
		t.Errorf("without a record: %q", got)
	}
}

// TestReleasedRecordStays: a record in git is not overwritten, others are.
func TestReleasedRecordStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire", "v1.txt")
	if err := write(path, "", "one", true); err != nil {
		t.Fatal(err)
	}
	if err := write(path, "one", "one", true); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := write(path, "one", "two", true); err == nil || !strings.Contains(err.Error(), "raise Version") {
		t.Errorf("a released record was overwritten: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "one" {
		t.Errorf("%q %v", b, err)
	}
	if err := write(path, "one", "two", false); err != nil {
		t.Error(err)
	}
	if !released("record.go") {
		t.Skip("package wiretest is not committed yet")
	}
	if released("no such file") {
		t.Error("a file that is not in git counts as released")
	}
}
