package layer

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/collective"
)

// mailed is a transport whose incoming messages pass through an actor's mailbox, as they would if the
// group were an actor.
type mailed struct {
	collective.Transport
	root *actor.RootContext
	pid  *actor.PID
}

type arrival struct {
	take func(src int, msg []byte)
	src  int
	msg  []byte
}

func (m mailed) Receive(take func(src int, msg []byte)) {
	m.Transport.Receive(func(src int, msg []byte) { m.root.Send(m.pid, &arrival{take, src, msg}) })
}

func (m mailed) Recycle(msg []byte) { m.Transport.(collective.Recycler).Recycle(msg) }

// BenchmarkGroup runs an all-gather of 4 ranks in memory, in four variants: the group itself;
// operations as messages to an actor; and incoming data as messages too, handled on the sender's
// goroutine or on the actor's own.
func BenchmarkGroup(b *testing.B) {
	const ranks = 4
	for _, floats := range []int{96, 1 << 16} { // a quarter of a decoded token's row of the test model fry; 256 KiB of a prompt
		for _, way := range []string{"group", "operations", "arrivals", "goroutine"} {
			b.Run(fmt.Sprintf("%s/%d", way, floats), func(b *testing.B) {
				quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
				sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
				defer sys.Shutdown()
				root := sys.Root
				spawn := func() *actor.PID {
					props := actor.PropsFromFunc(func(c actor.Context) {
						switch m := c.Message().(type) {
						case *arrival:
							m.take(m.src, m.msg)
						case func():
							m()
						}
					})
					if way != "goroutine" {
						props = props.Configure(actor.WithDispatcher(Dispatcher))
					}
					return root.Spawn(props)
				}
				groups, pids := make([]*collective.Group, ranks), make([]*actor.PID, ranks)
				for rank, wire := range collective.NewMemory(ranks) {
					pids[rank] = spawn()
					if way == "arrivals" || way == "goroutine" {
						wire = mailed{wire, root, pids[rank]}
					}
					g, err := collective.NewGroup(collective.Config{Rank: rank, Size: ranks, Epoch: 1,
						Incarnations: make([]uint32, ranks), Deadline: time.Minute}, wire)
					if err != nil {
						b.Fatal(err)
					}
					defer func() { g.Close(); <-g.Done() }()
					groups[rank] = g
				}
				recv, mine := make([][][]float32, ranks), make([]float32, floats)
				for rank := range recv {
					for range ranks {
						recv[rank] = append(recv[rank], make([]float32, floats))
					}
				}
				var wait sync.WaitGroup
				done := func(error) { wait.Done() }
				number := uint64(0)
				for b.Loop() {
					number++
					wait.Add(ranks)
					for rank, g := range groups {
						begin := func() { g.AllGather(collective.Op(0, number), mine, recv[rank], done) }
						if way == "group" {
							begin()
						} else {
							root.Send(pids[rank], begin)
						}
					}
					wait.Wait()
				}
			})
		}
	}
}
