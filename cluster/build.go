package cluster

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/shoal-llm/shoal/internal/bus"
)

// ErrBuild: this process differs in wire version or arithmetic from the cluster that it tries to join.
var ErrBuild = bus.ErrBuild

// Build describes the sources of this executable, for display: version, revision, build tags, Go
// version. Two different builds may work together if their wire versions and arithmetic match.
var Build = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev " + runtime.Version()
	}
	if version != "" {
		return strings.Join(strings.Fields(version+" "+commit+" "+info.GoVersion), " ")
	}
	return buildText(info)
})

// version and commit of a release, set by the linker (deploy/release).
var version, commit string

func buildText(info *debug.BuildInfo) string {
	var words []string
	if v := info.Main.Version; v != "" && v != "(devel)" && !strings.HasPrefix(v, "v0.0.0-") { // a pseudo-version only repeats the revision
		words = append(words, v)
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if rev := set["vcs.revision"]; rev != "" {
		rev = rev[:min(12, len(rev))]
		if set["vcs.modified"] == "true" {
			rev += "+changes"
		}
		words = append(words, rev)
	}
	if len(words) == 0 {
		words = append(words, "dev")
	}
	if tags := set["-tags"]; tags != "" {
		words = append(words, "tags="+tags)
	}
	text := strings.Join(append(words, info.GoVersion), " ")
	return text[:min(len(text), maxBuild)]
}

const maxBuild = 96 // the join message has 512 bytes in total
