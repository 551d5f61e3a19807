package cluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/rpc"
)

// Builds of earlier revisions from this repository's history.

// git runs a git command in the root of the repository.
func git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

var wireVersion = regexp.MustCompile(`\bVersion\s+=\s+(\d+)`)

// wireFiles are the past and present paths of the wire version, newest first.
var wireFiles = []string{"internal/wire/version.go", "cluster/rpc/version.go"}

// wireOf returns the wire version of a revision; 0 if unknown.
func wireOf(rev string) int {
	for _, file := range wireFiles {
		text, err := git("show", rev+":"+file)
		if m := wireVersion.FindStringSubmatch(text); err == nil && m != nil {
			n, _ := strconv.Atoi(m[1])
			return n
		}
	}
	return 0
}

// releases returns the newest revision with another wire version and the oldest with the current
// one. Both are empty in a checkout without history. The second is also empty before the first
// commit with the version.
func releases() (other, same string) {
	revs, _ := git(append([]string{"log", "--first-parent", "--format=%H", "HEAD", "--"}, wireFiles...)...)
	for rev := range strings.FieldsSeq(revs) {
		switch wireOf(rev) {
		case rpc.Version:
			same = rev
		case 0:
		default:
			before := same
			if before == "" { // the version was raised in the working tree
				return "HEAD", ""
			}
			parent, err := git("rev-parse", before+"^")
			if err != nil || wireOf(parent) == rpc.Version {
				return rev, same
			}
			return parent, same
		}
	}
	return "", same
}

// release builds cmd/shoal of a revision.
func (b *binaries) release(t testing.TB, rev string) string {
	t.Helper()
	full, err := git("rev-parse", "--verify", rev+"^{commit}")
	if err != nil {
		t.Skipf("revision %s is not in this checkout: clone the whole history", rev)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name := "shoal-" + full[:12]
	if path := b.made[name]; path != "" {
		return path
	}
	source, path := filepath.Join(b.dir, "source-"+full[:12]), filepath.Join(b.dir, name)
	if err := os.Mkdir(source, 0o700); err != nil {
		t.Fatal(err)
	}
	archive := exec.Command("bash", "-c", `set -o pipefail; git -c 'safe.directory=*' archive "$1" | tar -x -C "$2"`, "bash", full, source)
	archive.Dir = filepath.Join("..", "..")
	if out, err := archive.CombinedOutput(); err != nil {
		t.Fatalf("git archive %s: %v\n%s", rev, err, out)
	}
	began := time.Now()
	// Without paths in the binaries, unchanged packages come from the build cache.
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		fmt.Sprintf("-X github.com/shoal-llm/shoal/cluster.version=%s -X github.com/shoal-llm/shoal/cluster.commit=x", full[:12]),
		"-o", path, "./cmd/shoal")
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build of %s: %v\n%s", rev, err, out)
	}
	t.Logf("built %s in %.1f s", rev, time.Since(began).Seconds())
	b.made[name] = path
	return path
}
