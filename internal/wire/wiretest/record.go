// Package wiretest compares the formats of a package with the record of their wire version.
package wiretest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire"
)

var update = flag.Bool("record-wire", false, "write the record of a new wire version, testdata/wire/vN.txt")

// Form is one recorded format: golden bytes in hex, or the fields of a message, one a line.
type Form struct{ Name, Text string }

// Path returns the record of a wire version, relative to the package.
func Path(version int) string {
	return filepath.Join("testdata", "wire", fmt.Sprintf("v%d.txt", version))
}

// Check fails the test if a format differs from the record of wire.Version. With -record-wire it writes
// the record instead, unless git has one for this version.
func Check(t *testing.T, forms ...Form) {
	t.Helper()
	path := Path(wire.Version)
	had, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if *update {
		if err := write(path, string(had), text(forms), released(path)); err != nil {
			t.Fatal(err)
		}
		return
	}
	complaints := compare(string(had), forms)
	for _, complaint := range complaints {
		t.Error(complaint)
	}
	if len(complaints) > 0 {
		t.Errorf("Builds with this version's record would misread these formats. If one of them is released, raise Version in "+
			"internal/wire/version.go, else delete %s. Then run `make wire` (docs/decisions/wire-versions.md)", path)
	}
}

func text(forms []Form) string {
	var b strings.Builder
	fmt.Fprintf(&b, "wire version %d\n", wire.Version)
	for _, f := range forms {
		fmt.Fprintf(&b, "\n== %s\n%s\n", f.Name, strings.TrimSpace(f.Text))
	}
	return b.String()
}

// Parse reads a record: text by name of the format.
func Parse(record string) map[string]string {
	forms := map[string]string{}
	for _, part := range strings.Split(record, "\n== ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		forms[name] = strings.TrimSpace(body)
	}
	return forms
}

// compare lists the differences between a record and the formats of this build.
func compare(record string, forms []Form) (complaints []string) {
	if record == "" {
		return []string{fmt.Sprintf("wire version %d has no record of this package", wire.Version)}
	}
	was := Parse(record)
	for _, f := range forms {
		old, known := was[f.Name]
		delete(was, f.Name)
		switch now := strings.TrimSpace(f.Text); {
		case !known:
			complaints = append(complaints, fmt.Sprintf("%q is not in the record of wire version %d", f.Name, wire.Version))
		case old != now:
			complaints = append(complaints, fmt.Sprintf("%q differs from the record of wire version %d:%s", f.Name, wire.Version, diff(old, now)))
		}
	}
	for name := range was {
		complaints = append(complaints, fmt.Sprintf("%q of wire version %d is gone", name, wire.Version))
	}
	return complaints
}

// diff lists the lines that a text has more often than the other.
func diff(recorded, now string) string {
	var out strings.Builder
	count := map[string]int{} // by line: number in recorded minus number in now
	for l := range strings.SplitSeq(recorded, "\n") {
		count[l]++
	}
	for l := range strings.SplitSeq(now, "\n") {
		count[l]--
	}
	only := func(place, text string, sign int) {
		for l := range strings.SplitSeq(text, "\n") {
			if count[l]*sign > 0 {
				count[l] -= sign
				fmt.Fprintf(&out, "\n\t%s: %.300s", place, l)
			}
		}
	}
	only("only in the record", recorded, 1)
	only("only in this build", now, -1)
	if out.Len() == 0 {
		return " its lines are in another order"
	}
	return out.String()
}

// write stores a record. A released one is not changed.
func write(path, had, now string, released bool) error {
	switch {
	case had == now:
		return nil
	case had != "" && released:
		return fmt.Errorf("%s is the record of a wire version that is released, and it differs: raise Version in internal/wire/version.go first",
			path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(now), 0o644)
}

// released reports whether a record is committed. Without git every record is.
func released(path string) bool {
	if exec.Command("git", "rev-parse", "--git-dir").Run() != nil {
		return true
	}
	return exec.Command("git", "cat-file", "-e", "HEAD:./"+filepath.ToSlash(path)).Run() == nil
}
