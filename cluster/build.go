package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/arithmetic"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
)

// ErrBuild: this process speaks or computes otherwise than the cluster that it was to join.
var ErrBuild = errors.New("cluster: another build")

// Build names what this process was built from, for people: version, revision, build tags,
// Go's version. Two builds may work together if they speak and compute alike.
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

// version and commit of a release; its linker sets them (deploy/release).
var version, commit string

func buildText(info *debug.BuildInfo) string {
	var words []string
	if v := info.Main.Version; v != "" && v != "(devel)" && !strings.HasPrefix(v, "v0.0.0-") { // which only repeats the revision
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

const maxBuild = 96 // in the join message, which has 512 bytes for all

// introduce fills in what the others compare before they work with this process.
func introduce(m *gossip.Meta) (err error) {
	m.Build, m.WireMin, m.WireMax = Build(), rpc.MinVersion, rpc.Version
	m.Arithmetic, err = arithmetic.Fingerprint()
	return err
}

// unlike says why processes with these join messages cannot work together, each named by
// what comes before its build; empty: they can.
func unlike(one string, a *gossip.Meta, other string, b *gossip.Meta) string {
	switch {
	case a.WireMax < b.WireMin || b.WireMax < a.WireMin:
		return fmt.Sprintf("%s (build %s) speaks %s, %s (build %s) speaks %s", one, a.Build, wireText(a), other, b.Build, wireText(b))
	case a.Arithmetic != b.Arithmetic || a.Arithmetic == "":
		return fmt.Sprintf("%s (build %s) computes by %s, %s (build %s) by %s, and the same request would get other bits", one, a.Build, arithmeticText(a), other, b.Build, arithmeticText(b))
	}
	return ""
}

func wireText(m *gossip.Meta) string {
	switch {
	case m.WireMax == 0:
		return "a wire version that it does not tell, as early builds did"
	case m.WireMin == m.WireMax:
		return fmt.Sprintf("wire version %d", m.WireMax)
	}
	return fmt.Sprintf("wire versions %d to %d", m.WireMin, m.WireMax)
}

func arithmeticText(m *gossip.Meta) string {
	if m.Arithmetic == "" {
		return "an arithmetic that it does not tell"
	}
	return "arithmetic " + m.Arithmetic
}

const sameBuild = "run the same build of Shoal everywhere (`shoal version` tells them apart)"

// unlikeCoordinators are the coordinators that are there and that this process cannot work
// with, by incarnation, each with the reason; like tells that there is another one.
func (b *bus) unlikeCoordinators(ctx context.Context, self string) (why map[uint64]string, like bool) {
	mine := b.gossip.Meta()
	for _, m := range b.gossip.Members() {
		if m.Meta.Role != string(security.RoleCoordinator) || m.Name == b.gossip.Name() {
			continue
		}
		text := unlike(self, &mine, fmt.Sprintf("the coordinator %q", m.Name), &m.Meta)
		if text == "" {
			like = true
			continue
		}
		// One that has died may be a member for some seconds yet.
		if _, err := b.rpc.Hello(ctx, m.Meta.RPC); errors.Is(err, rpc.ErrUnreachable) || ctx.Err() != nil {
			continue
		}
		if why == nil {
			why = map[uint64]string{}
		}
		why[m.Meta.Incarnation] = text
	}
	return why, like
}

// checkBuild is an error when there are coordinators, and none that this process can work with.
func (b *bus) checkBuild(ctx context.Context, self string) error {
	why, like := b.unlikeCoordinators(ctx, self)
	if like {
		return nil
	}
	for _, text := range why {
		return fmt.Errorf("%w: %s; %s", ErrBuild, text, sameBuild)
	}
	return nil
}

// complaints says again, from time to time, which coordinators this process cannot work with.
type complaints struct{ said map[uint64]time.Time }

const complainEvery = time.Minute

func (c *complaints) say(log *slog.Logger, what string, why map[uint64]string) {
	if c.said == nil || len(why) == 0 {
		c.said = map[uint64]time.Time{}
	}
	for incarnation, text := range why {
		if last, ok := c.said[incarnation]; !ok || time.Since(last) > complainEvery {
			c.said[incarnation] = time.Now()
			log.Error(what, "reason", text, "do", sameBuild)
		}
	}
}
