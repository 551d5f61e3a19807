package socket

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
)

// A collective actor that is stopped while its group forms must close the group and report that.
// One that panics must end its group, whose later operations fail.
func TestCollectiveActorEndsItsGroup(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
	defer sys.Shutdown()
	type answer struct {
		x   *exchanges
		err error
	}
	start := func(form func(ctx context.Context) (*collective.Group, error)) (*actor.PID, chan answer) {
		formed := make(chan answer, 1)
		a := &collectiveActor{timeout: time.Minute, form: form,
			formed: func(x *exchanges, err error, _ time.Duration) { formed <- answer{x, err} }}
		return sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithDispatcher(layer.Dispatcher))), formed
	}
	group := func() (*collective.Group, error) {
		return collective.NewGroup(collective.Config{Rank: 0, Size: 2, Epoch: 1, Deadline: time.Minute}, collective.NewMemory(2)[0])
	}
	ended := func(g *collective.Group) {
		t.Helper()
		select {
		case <-g.Done():
		case <-time.After(time.Minute):
			t.Fatal("the group was not closed")
		}
	}

	pid, formed := start(func(ctx context.Context) (*collective.Group, error) {
		<-ctx.Done()
		return group() // too late
	})
	sys.Root.Stop(pid)
	if a := <-formed; !errors.Is(a.err, ErrRetired) {
		t.Errorf("the group formed after the actor had stopped: %v", a.err)
	} else {
		ended(a.x.group)
	}

	pid, formed = start(func(context.Context) (*collective.Group, error) { return group() })
	a := <-formed
	if a.err != nil {
		t.Fatal(a.err)
	}
	done := make(chan error, 2)
	a.x.AllGather(1, make([]float32, 4), make([][]float32, 3), func(err error) { done <- err }) // invalid: three slices for two ranks
	if err := <-done; !errors.Is(err, collective.ErrArgument) {
		t.Errorf("an operation with bad arguments ended with %v", err)
	}
	sys.Root.Send(pid, operation(func() { panic("a broken invariant") }))
	ended(a.x.group)
	a.x.AllToAll(2, make([][]byte, 2), make([][]byte, 2), func(err error) { done <- err })
	if err := <-done; err == nil {
		t.Error("an operation of a group that has ended succeeded")
	}
	sys.Root.Stop(pid)
}
