package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/script/*.txt, command lines as users type them. SERVER is a running
// cluster of two nodes, MODEL the bundled checkpoint.
func TestScripts(t *testing.T) {
	parallel(t)
	bin := filepath.Dir(built.shoal(t, ""))
	c := up(t, 2)
	model, err := filepath.Abs("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("script", func(t *testing.T) { // the scripts run in parallel and end before the cluster
		testscript.Run(t, testscript.Params{
			Dir: "testdata/script",
			Setup: func(e *testscript.Env) error {
				e.Setenv("PATH", bin+string(filepath.ListSeparator)+e.Getenv("PATH"))
				e.Setenv("SERVER", strings.TrimPrefix(c.base, "http://"))
				e.Setenv("MODEL", model)
				return nil
			},
		})
	})
}
