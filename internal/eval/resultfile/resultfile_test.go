package resultfile_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/eval/resultfile"
)

// TestTwoRuns: a second run with the same file is refused while the first one appends, because each would overwrite
// the records of the other.
func TestTwoRuns(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files are not locked there")
	}
	path := filepath.Join(t.TempDir(), "results.jsonl")
	open := func() (*resultfile.File, int, error) {
		n := 0
		f, err := resultfile.Open(path, func([]byte) error { n++; return nil })
		return f, n, err
	}
	first, _, err := open()
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := open()
	if err == nil { // as the two runs would go on
		err = errors.Join(second.Append(1), first.Append(2), second.Close())
	} else if !errors.Is(err, resultfile.ErrFile) || !strings.Contains(err.Error(), "another run") {
		t.Error(err)
	} else {
		err = errors.Join(first.Append(1), first.Append(2))
	}
	if err := errors.Join(err, first.Close()); err != nil {
		t.Fatal(err)
	}
	third, n, err := open()
	if err != nil || n != 2 {
		t.Errorf("%d records of 2: %v", n, err)
	}
	if err == nil {
		err = third.Close()
	}
	if err != nil {
		t.Error(err)
	}
}
