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

// ErrBuild: this process differs in wire version or arithmetic from the cluster that it wants to
// join.
var ErrBuild = errors.New("cluster: another build")

// Build describes what this process was built from, for display: version, revision, build tags, Go
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

// introduce sets the fields that other processes compare before they cooperate with this one.
func introduce(m *gossip.Meta) (err error) {
	m.Build, m.WireMin, m.WireMax = Build(), rpc.MinVersion, rpc.Version
	m.Arithmetic, err = arithmetic.Fingerprint()
	return err
}

// incompatible returns why processes with these join messages cannot work together, or "" if they
// can. one and other name the processes in the result.
func incompatible(one string, a *gossip.Meta, other string, b *gossip.Meta) string {
	switch {
	case a.WireMax < b.WireMin || b.WireMax < a.WireMin:
		return fmt.Sprintf("%s (build %s) speaks %s, %s (build %s) speaks %s", one, a.Build, wireText(a), other, b.Build, wireText(b))
	case a.Arithmetic != b.Arithmetic || a.Arithmetic == "":
		return fmt.Sprintf("%s (build %s) has %s, %s (build %s) has %s: the same request would give different bits", one, a.Build, arithmeticText(a), other, b.Build, arithmeticText(b))
	}
	return ""
}

func wireText(m *gossip.Meta) string {
	switch {
	case m.WireMax == 0:
		return "an unknown wire version, as in early builds"
	case m.WireMin == m.WireMax:
		return fmt.Sprintf("wire version %d", m.WireMax)
	}
	return fmt.Sprintf("wire versions %d to %d", m.WireMin, m.WireMax)
}

func arithmeticText(m *gossip.Meta) string {
	if m.Arithmetic == "" {
		return "an unknown arithmetic"
	}
	return "arithmetic " + m.Arithmetic
}

const sameBuild = "run the same build of Shoal everywhere (see `shoal version`)"

// incompatibleCoordinators returns the running coordinators that this process cannot work with, by
// incarnation, with the reason. like reports whether there is a compatible one.
func (b *bus) incompatibleCoordinators(ctx context.Context, self string) (why map[uint64]string, like bool) {
	mine := b.gossip.Meta()
	for _, m := range b.gossip.Members() {
		if m.Meta.Role != string(security.RoleCoordinator) || m.Name == b.gossip.Name() {
			continue
		}
		text := incompatible(self, &mine, fmt.Sprintf("the coordinator %q", m.Name), &m.Meta)
		if text == "" {
			like = true
			continue
		}
		// A dead coordinator may remain a member for some seconds.
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

// checkBuild returns an error if there are coordinators but none is compatible.
func (b *bus) checkBuild(ctx context.Context, self string) error {
	why, like := b.incompatibleCoordinators(ctx, self)
	if like {
		return nil
	}
	for _, text := range why {
		return fmt.Errorf("%w: %s; %s", ErrBuild, text, sameBuild)
	}
	return nil
}

// buildWarnings logs incompatible coordinators, each at most once per complainEvery.
type buildWarnings struct{ logged map[uint64]time.Time }

const complainEvery = time.Minute

func (c *buildWarnings) log(log *slog.Logger, what string, why map[uint64]string) {
	if c.logged == nil || len(why) == 0 {
		c.logged = map[uint64]time.Time{}
	}
	for incarnation, text := range why {
		if last, ok := c.logged[incarnation]; !ok || time.Since(last) > complainEvery {
			c.logged[incarnation] = time.Now()
			log.Error(what, "reason", text, "do", sameBuild)
		}
	}
}
