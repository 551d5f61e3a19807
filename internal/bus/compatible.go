package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/arithmetic"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
)

// ErrBuild: this process and the cluster differ in wire version or arithmetic, so it cannot join.
var ErrBuild = errors.New("cluster: another build")

// introduce sets the fields that other processes compare before they cooperate with this one.
func introduce(m *gossip.Meta) (err error) {
	m.WireMin, m.WireMax = rpc.MinVersion, rpc.Version
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
		return fmt.Sprintf("%s (build %s) has %s, %s (build %s) has %s: the same request would give different bits", one, a.Build,
			arithmeticText(a), other, b.Build, arithmeticText(b))
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

// SameBuild is the advice in errors about incompatible builds.
const SameBuild = "run the same build of Shoal everywhere (see `shoal version`)"

// IncompatibleCoordinators returns the running coordinators that this process cannot work with, by
// incarnation, with the reason. like reports whether there is a compatible one.
func (b *Bus) IncompatibleCoordinators(ctx context.Context) (why map[uint64]string, like bool) {
	mine := b.Gossip.Meta()
	for _, m := range b.Gossip.Members() {
		if m.Meta.Role != string(security.RoleCoordinator) || m.Name == b.Gossip.Name() {
			continue
		}
		text := incompatible("this "+string(b.role), &mine, fmt.Sprintf("the coordinator %q", m.Name), &m.Meta)
		if text == "" {
			like = true
			continue
		}
		// A dead coordinator may remain a member for some seconds.
		if _, err := b.RPC.Hello(ctx, m.Meta.RPC); errors.Is(err, rpc.ErrUnreachable) || ctx.Err() != nil {
			continue
		}
		if why == nil {
			why = map[uint64]string{}
		}
		why[m.Meta.Incarnation] = text
	}
	return why, like
}

// Incompatible returns why this process cannot work with another one, or "".
func (b *Bus) Incompatible(m *gossip.Member) string {
	mine := b.Gossip.Meta()
	if why := incompatible("it", &m.Meta, "the cluster", &mine); why != "" {
		return why + "; " + SameBuild
	}
	return ""
}

// CheckBuild returns an error if there are coordinators but none is compatible.
func (b *Bus) CheckBuild(ctx context.Context) error {
	why, like := b.IncompatibleCoordinators(ctx)
	if like {
		return nil
	}
	for _, text := range why {
		return fmt.Errorf("%w: %s; %s", ErrBuild, text, SameBuild)
	}
	return nil
}

// BuildWarnings remembers which incompatible coordinators were logged.
type BuildWarnings struct{ logged map[uint64]time.Time }

const complainEvery = time.Minute

// Log logs incompatible coordinators, each at most once per complainEvery.
func (c *BuildWarnings) Log(log *slog.Logger, what string, why map[uint64]string) {
	if c.logged == nil || len(why) == 0 {
		c.logged = map[uint64]time.Time{}
	}
	for incarnation, text := range why {
		if last, ok := c.logged[incarnation]; !ok || time.Since(last) > complainEvery {
			c.logged[incarnation] = time.Now()
			log.Error(what, "reason", text, "do", SameBuild)
		}
	}
}
