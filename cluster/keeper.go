package cluster

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"shoal/cluster/rpc"
	"shoal/collective/natsbus"
	"shoal/jobs"
	"shoal/jobs/files"
	"shoal/jobs/journal"
	"shoal/proto"
	"shoal/security"
)

// keepers is how many processes keep a copy of a replicated store: it goes on
// while two of them are up.
const keepers = 3

// storeBytes is what one keeper may take on disk: jobs, files, and the lease.
const storeBytes = jobs.StoreBytes + files.Bytes + (256 << 20)

// plan is a replicated store: who keeps it. It stands in the store, and each of them
// writes it down to find the others. The operator changes it, one member at a time
// (storeops.go).
type plan struct {
	ID       string       `json:"id"`
	Revision uint32       `json:"revision,omitempty"` // grows with each change
	Self     string       `json:"self,omitempty"`     // this process's member
	Members  []planMember `json:"members"`
	// Removed are those that were taken out last: they are told, should they come back.
	Removed []planMember `json:"removed,omitempty"`
}

type planMember struct {
	Name   string `json:"name"`             // of the process
	Route  string `json:"route"`            // host:port
	Server string `json:"server,omitempty"` // the name of its server; empty: Name
}

func (m planMember) server() string { return cmp.Or(m.Server, m.Name) }

func (p *plan) servers() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.server())
	}
	return out
}

// member finds one by the name of its process; -1: it is none.
func (p *plan) member(name string) int {
	return slices.IndexFunc(p.Members, func(m planMember) bool { return m.Name == name })
}

func (p *plan) routes() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.Route)
	}
	return out
}

// keeper is a process's part in the replicated store: a NATS server with
// JetStream in a mesh of its own, apart from that of the tensors, since a
// collective must not wait for a disk. It begins when the coordinator asks for it, and
// goes on by itself after a restart.
type keeper struct {
	dir  string
	name string
	key  security.Key
	role security.Role
	log  *slog.Logger
	addr string // its place in a replicated store, taken or offered

	asked  sync.WaitGroup
	mender *mender
	change sync.Mutex // one at a time

	mu   sync.Mutex
	plan *plan
	bus  *natsbus.Server
	held net.Listener // keeps the offered address free for the server; nil: it is needed no more
}

// openKeeper starts what a data directory says, whose lock the caller has.
func openKeeper(dir, name, at string, role security.Role, key security.Key, log *slog.Logger) (_ *keeper, err error) {
	k := &keeper{dir: dir, name: name, key: key, role: role, log: log}
	defer func() {
		if err == nil {
			k.mender = startMender(dir, func() *natsbus.Server { _, bus := k.now(); return bus }, log)
		}
	}()
	b, err := os.ReadFile(k.path())
	switch {
	case err == nil:
		p := new(plan)
		if err := json.Unmarshal(b, p); err != nil {
			return nil, fmt.Errorf("cluster: %s does not decode: %w", k.path(), err)
		}
		return k, k.start(p)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("cluster: %w", err)
	}
	// A port that is free now, and stays so until the server takes it.
	if k.held, err = net.Listen("tcp", at); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	k.addr = k.held.Addr().String()
	return k, nil
}

// free lets the offered address go.
func (k *keeper) free() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != nil {
		_ = k.held.Close() // nobody has accepted from it
		k.held = nil
	}
}

func (k *keeper) path() string { return filepath.Join(k.dir, "store.json") }

// keep takes part in a store from now on, or learns who does now. Twice is once, and
// what is older than what is known says nothing.
func (k *keeper) keep(p *plan) error {
	k.change.Lock()
	defer k.change.Unlock()
	if old, bus := k.now(); old != nil {
		if old.ID == p.ID {
			return k.follow(old, p, bus)
		}
		return fmt.Errorf("cluster: %s keeps store %s already, not %s; give it an empty --data-dir to change that", k.name, old.ID, p.ID)
	}
	if err := k.write(p); err != nil {
		return err
	}
	k.free()
	if err := k.start(p); err != nil {
		_ = os.Remove(k.path())
		return err
	}
	k.log.Info("keeps a copy of the store", "store", p.ID, "as", p.Self, "members", p.routes())
	return nil
}

// follow takes a newer plan of the same store. Who is not in it puts its copy aside.
func (k *keeper) follow(old, p *plan, bus *natsbus.Server) error {
	if p.Revision <= old.Revision {
		return nil
	}
	if p.Self == "" {
		bus.Shutdown()
		k.log.Error("this process keeps no copy of the store any more: it was removed. To keep one again, start it again", "store", old.ID)
		aside := filepath.Join(k.dir, fmt.Sprintf("removed-%s-%d", p.ID, p.Revision))
		return errors.Join(os.MkdirAll(aside, 0o700), os.Rename(k.path(), filepath.Join(aside, "store.json")), os.Rename(k.storeDir(old), filepath.Join(aside, "store")))
	}
	if err := k.write(p); err != nil {
		return err
	}
	k.mu.Lock()
	k.plan = p
	k.mu.Unlock()
	for _, at := range p.routes() {
		if err := bus.AddRoute(at); err != nil {
			return err
		}
	}
	k.log.Info("the members of the store have changed", "store", p.ID, "members", p.servers())
	return nil
}

func (k *keeper) write(p *plan) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return journal.WriteWhole(k.path(), b)
}

func (k *keeper) storeDir(p *plan) string { return filepath.Join(k.dir, "store-"+p.ID) }

func (k *keeper) start(p *plan) error {
	at := p.member(p.Self)
	if at < 0 || len(p.Members) < 2 || len(p.Members) > keepers {
		return fmt.Errorf("cluster: the store %s has %d members, want 2 or %d, %q among them", p.ID, len(p.Members), keepers, p.Self)
	}
	cfg := natsbus.Config{Name: p.Members[at].server(), Cluster: "store-" + p.ID, Listen: p.Members[at].Route, Seeds: p.routes(), HungAfter: 2 * hintAfter,
		StoreDir: k.storeDir(p), StoreBytes: storeBytes, SyncAlways: true, Log: k.log}
	if !k.key.IsZero() {
		var err error
		var clients *tls.Config
		if cfg.RouteTLS, clients, err = busTLS(k.key, security.Identity{Role: k.role, ID: k.name}); err != nil {
			return err
		}
		cfg.ClientTLS, cfg.Secret, cfg.Secrets = clients, k.key.BusPassword(security.RoleCoordinator), passwords(k.key, security.RoleCoordinator)
	}
	bus, err := natsbus.Start(cfg)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.plan, k.bus, k.addr = p, bus, p.Members[at].Route
	k.mu.Unlock()
	return nil
}

// now is the store that is kept and its server; nil: there is none yet.
func (k *keeper) now() (*plan, *natsbus.Server) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plan, k.bus
}

func (k *keeper) close() {
	k.asked.Wait()
	k.mender.close()
	k.free()
	if _, bus := k.now(); bus != nil {
		bus.Shutdown()
	}
}

// keeperName is the actor of a process that offers to keep a copy.
const keeperName = "keeper"

// serve answers the coordinator that forms a store.
func (k *keeper) serve(sys *rpc.System) error {
	mux := rpc.NewMux(sys)
	rpc.Handle(mux, uint32(proto.Kind_KIND_KEEP), func(c *rpc.Ctx, m *proto.KeepRequest) {
		p := &plan{ID: m.Store, Revision: m.Revision}
		for _, x := range m.Keepers[:min(len(m.Keepers), keepers)] {
			p.Members = append(p.Members, planMember{x.Name, x.Route, x.Server})
		}
		p.Self = p.at(k.addr)
		if _, err := os.Stat(filepath.Join(k.dir, "jetstream")); err == nil {
			c.Fail(fmt.Errorf("cluster: %s has jobs of its own in %s; give it an empty --data-dir", k.name, k.dir))
			return
		}
		k.asked.Add(1)
		go func() { // starting a server takes a while
			defer k.asked.Done()
			respond(c, &proto.Empty{}, k.keep(p))
		}()
	})
	_, err := sys.Spawn(keeperName, actor.PropsFromFunc(func(c actor.Context) { mux.Receive(c) }))
	return err
}

// at is the member whose routes listen there; empty: none.
func (p *plan) at(route string) string {
	for _, m := range p.Members {
		if m.Route == route {
			return m.Name
		}
	}
	return ""
}

// request asks another process to keep a copy.
func (p *plan) request() *proto.KeepRequest {
	r := &proto.KeepRequest{Store: p.ID, Revision: p.Revision}
	for _, m := range p.Members {
		r.Keepers = append(r.Keepers, &proto.Keeper{Name: m.Name, Route: m.Route, Server: m.Server})
	}
	return r
}
