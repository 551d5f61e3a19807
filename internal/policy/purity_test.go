package policy

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// A file that decides maps values to values, so that a test can replay it and every node that
// replays it gets the same result. It uses no clock, channel, socket, logger, lock or random
// numbers. Time is an argument.

// decides reports which files must be pure: state.go, state_*.go, the operations of
// collective, and all of topology and actors/socket/machine.
func decides(s source) bool {
	base := path.Base(s.name)
	return !s.test && (base == "state.go" || strings.HasPrefix(base, "state_") || s.pkg == "topology" ||
		s.pkg == "actors/socket/machine" || s.name == "collective/op.go")
}

// impure lists packages that a deciding file must not import, including their subpackages.
var impure = []string{
	"context", "crypto/rand", "io/fs", "log", "math/rand", "net", "os", "runtime", "sync", "syscall", "testing",
	"github.com", "go.uber.org", "golang.org", "google.golang.org",
}

// timeValues lists the names of package time that a deciding file may use.
var timeValues = []string{
	"Duration", "Time", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour", "Unix", "UnixMilli", "UnixMicro",
}

func TestStateFilesArePure(t *testing.T) {
	seen := 0
	for _, s := range sources(t) {
		if !decides(s) {
			continue
		}
		seen++
		for _, complaint := range checkPure(s) {
			t.Error(complaint)
		}
	}
	if seen < 3 {
		t.Errorf("only %d deciding files found: the policy looks for the wrong names", seen)
	}
}

// TestActorsDoNotSleep: a handler that sleeps blocks its mailbox. Waits must be messages.
func TestActorsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.pkg, "actors") {
			continue
		}
		for _, at := range timeUses(s, func(name string) bool { return name == "Sleep" }) {
			t.Errorf("%s: time.Sleep in an actor: send yourself a message instead", at)
		}
	}
}

// mayUseUnsafe lists the packages with kernels, mapped or shared memory, conversions of floats to
// bytes, or calls of C.
var mayUseUnsafe = []string{
	"collective",
	"internal/engine/checkpoint",
	"internal/engine/cuda",
	"internal/engine/cuda/kernels/gen",
	"internal/engine/kvcache/memory",
	"internal/engine/kvcache/states",
	"internal/engine/tensor",
	"internal/engine/tensor/kernel",
	"internal/native",
	"internal/sys/hugemem",
	"internal/sys/sharedmem",
}

// TestUnsafeStaysDown allows package unsafe to those packages alone.
func TestUnsafeStaysDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.generated() || !slices.Contains(s.imports, "unsafe") {
			continue
		}
		if !slices.Contains(mayUseUnsafe, s.pkg) {
			t.Errorf("%s imports unsafe: add the function to package tensor", s.name)
		}
	}
}

func TestPurityCanFail(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`import "fmt"; var _ = fmt.Sprint`, ""},
		{`import "time"; var _ = time.Second`, ""},
		{`import "time"; var _ = time.Now`, "time.Now"},
		{`import clock "time"; var _ = clock.Now`, "time.Now"},
		{`import "math/rand/v2"; var _ = rand.Int`, "math/rand/v2"},
		{`import "sync"; var _ sync.Mutex`, "sync"},
		{`import "log/slog"; var _ = slog.Info`, "log/slog"},
		{`import "github.com/other/shoal"; var _ = shoal.X`, "github.com/other"},
		{`import "github.com/shoal-llm/shoal/internal/jobs"; var _ = jobs.X`, ""},
		{`func f() { go f() }`, "goroutine"},
		{`var c chan int`, "channel"},
		{`func f() { select {} }`, "channel"},
	} {
		got := strings.Join(checkPure(parse(t, "actors/x/state.go", "package x\n"+c.text+"\n")), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.text, got, c.want)
		}
	}
}

func checkPure(s source) (complaints []string) {
	for _, imp := range s.imports {
		if within(imp, module) {
			continue // floors covers imports within this module
		}
		for _, bad := range impure {
			if first, _, _ := strings.Cut(imp, "/"); within(imp, bad) || first == bad {
				complaints = append(complaints, fmt.Sprintf("%s decides, so it may not import %s", s.name, imp))
			}
		}
	}
	for _, use := range timeUses(s, func(name string) bool { return !slices.Contains(timeValues, name) }) {
		complaints = append(complaints, use+": a state file gets the time as an argument")
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt:
			complaints = append(complaints, s.at(n)+": a goroutine in a file that decides")
		case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			complaints = append(complaints, s.at(n)+": a channel in a file that decides")
		}
		return true
	})
	return complaints
}

// timeUses lists where s uses a name of package time for which bad returns true.
func timeUses(s source, bad func(name string) bool) (uses []string) {
	local := ""
	for _, i := range s.file.Imports {
		if i.Path.Value == `"time"` {
			local = "time"
			if i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	if local == "" {
		return nil
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && bad(sel.Sel.Name) {
			uses = append(uses, s.at(sel)+": time."+sel.Sel.Name)
		}
		return true
	})
	return uses
}
