package store

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// wanted is the number of replicas of a store. It works while two of them are up.
const wanted = 3

// storeBytes is the disk limit of one replica: jobs, files and the lease.
const storeBytes = jobs.StoreBytes + files.Bytes + (256 << 20)

// replica is this process's replica of the store: a NATS server with JetStream. Its mesh is
// separate from that of the tensors, because a collective must not wait for a disk. It starts on
// the coordinator's request, and by itself after a restart.
type replica struct {
	dir  string
	name string
	key  security.Key
	role security.Role
	log  *slog.Logger
	at   hostname.Place
	addr string // address in the replicated store, used or offered

	requested sync.WaitGroup
	restarter *restarter
	change    sync.Mutex // serialises changes; guards removed
	removed   bool       // the members have removed this process, which keeps no copy until it is started again

	mu   sync.Mutex
	plan *plan
	bus  *natsbus.Server
	held net.Listener // reserves the offered address for the server; nil: no longer needed
}

// openReplica starts the replica that a data directory describes. The caller holds the directory's
// lock. Port 0 chooses a port that this process then keeps, because the other members record it.
func openReplica(ctx context.Context, dir, name string, at hostname.Place, role security.Role, key security.Key,
	log *slog.Logger) (_ *replica, err error) {
	r := &replica{dir: dir, name: name, at: at, key: key, role: role, log: log}
	defer func() {
		if err == nil {
			r.restarter = startRestarter(dir, func() *natsbus.Server { _, bus := r.now(); return bus }, log)
		}
	}()
	b, err := os.ReadFile(r.path())
	switch {
	case err == nil:
		p := new(plan)
		if err := json.Unmarshal(b, p); err != nil {
			return nil, fmt.Errorf("store: %s does not decode: %w", r.path(), err)
		}
		return r, r.start(ctx, p)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("store: %w", err)
	}
	// Reserve a free port until the server listens on it.
	if host, port, _ := net.SplitHostPort(at.Bind); port == "0" {
		r.held, err = fixedport.Listen(host)
	} else {
		r.held, err = net.Listen("tcp", at.Bind)
	}
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	r.addr = at.With(r.held.Addr().String())
	return r, nil
}

// free releases the reserved address.
func (r *replica) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil {
		_ = r.held.Close() // it has accepted no connection
		r.held = nil
	}
}

func (r *replica) path() string { return filepath.Join(r.dir, "store.json") }

// keep joins a store, or applies its new member list. Repeated and outdated requests have no
// effect.
func (r *replica) keep(ctx context.Context, p *plan) error {
	r.change.Lock()
	defer r.change.Unlock()
	if old, bus := r.now(); old != nil {
		if old.ID == p.ID {
			return r.follow(old, p, bus)
		}
		return fmt.Errorf("store: %s keeps store %s already, not %s; give it an empty "+options.Name("data-dir")+
			" to change that", r.name, old.ID, p.ID)
	}
	if err := r.write(p); err != nil {
		return err
	}
	r.free()
	if err := r.start(ctx, p); err != nil {
		_ = os.Remove(r.path())
		return err
	}
	r.log.Info("keeps a copy of the store", "store", p.ID, "as", p.Self, "members", p.routes())
	return nil
}

// follow applies a newer plan of the same store. A removed member moves its copy aside.
func (r *replica) follow(old, p *plan, bus *natsbus.Server) error {
	switch {
	case p.Revision <= old.Revision, r.removed && p.Self == "":
		return nil
	case r.removed:
		return fmt.Errorf("store: %s was removed from the store and has to be restarted before it keeps a copy again", r.name)
	case p.Self == "":
		bus.Shutdown()
		r.log.Error("this process was removed from the store and keeps no copy any more; restart it to offer one again", "store", old.ID)
		aside := filepath.Join(r.dir, fmt.Sprintf("removed-%s-%d", p.ID, p.Revision))
		if err := errors.Join(os.MkdirAll(aside, 0o700), os.Rename(r.path(), filepath.Join(aside, "store.json"))); err != nil {
			return err
		}
		r.removed = true // a later start finds no store here
		if err := os.Rename(r.storeDir(old), filepath.Join(aside, "store")); err != nil {
			return fmt.Errorf("store: %w", err)
		}
		return nil
	}
	if err := r.write(p); err != nil {
		return err
	}
	r.mu.Lock()
	r.plan = p
	r.mu.Unlock()
	for _, at := range p.routes() {
		if err := bus.AddRoute(at); err != nil {
			return err
		}
	}
	r.log.Info("the members of the store have changed", "store", p.ID, "members", p.servers())
	return nil
}

func (r *replica) write(p *plan) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return wholefile.Write(r.path(), b, 0o600)
}

func (r *replica) storeDir(p *plan) string { return filepath.Join(r.dir, "store-"+p.ID) }

func (r *replica) start(ctx context.Context, p *plan) error {
	at := p.member(p.Self)
	if at < 0 || len(p.Members) < 2 || len(p.Members) > wanted {
		return fmt.Errorf("store: the store %s has %d members, want 2 or %d, including %q", p.ID, len(p.Members), wanted, p.Self)
	}
	listen, advertise := r.listens(p.Members[at].Route)
	cfg := natsbus.Config{Name: p.Members[at].server(), Cluster: "store-" + p.ID, Listen: listen, Advertise: advertise,
		Seeds: p.routes(), HungAfter: 2 * hintAfter,
		StoreDir: r.storeDir(p), StoreBytes: storeBytes, SyncAlways: true, Log: r.log}
	if !r.key.IsZero() {
		var err error
		var clients *tls.Config
		if cfg.RouteTLS, clients, err = r.key.BusTLS(security.Identity{Role: r.role, ID: r.name}); err != nil {
			return err
		}
		cfg.ClientTLS, cfg.Secret, cfg.Secrets = clients, r.key.BusPassword(security.RoleCoordinator),
			r.key.BusPasswords(security.RoleCoordinator)
	}
	if err := awaitPort(ctx, cfg.Listen, r.log); err != nil {
		return fmt.Errorf("%w. Or let another process keep the copy: shoal store remove %[2]s, then start %[2]s with an empty "+
			options.Name("data-dir")+" and add it again", err, r.name)
	}
	bus, err := natsbus.Start(cfg)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.plan, r.bus, r.addr = p, bus, p.Members[at].Route
	r.mu.Unlock()
	return nil
}

// listens returns where this process listens for a route. The name of a host may lead to another address than when the
// members recorded it.
func (r *replica) listens(route string) (at, advertise string) {
	host, port, err := net.SplitHostPort(route)
	own, _, ownErr := net.SplitHostPort(r.at.Bind)
	if err != nil || ownErr != nil || !hostname.IsName(host) {
		return route, ""
	}
	return net.JoinHostPort(own, port), route
}

// now returns the plan and server of this replica, or nil, nil before it has joined a store.
func (r *replica) now() (*plan, *natsbus.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plan, r.bus
}

func (r *replica) close() {
	r.requested.Wait()
	r.restarter.close()
	r.free()
	if _, bus := r.now(); bus != nil {
		bus.Shutdown()
	}
}

// actorName is the actor of a process that offers to keep a replica.
const actorName = "store"

// serve handles requests of the coordinator that forms a store.
func (r *replica) serve(sys *rpc.System) error {
	mux := rpc.NewMux(sys)
	rpc.Handle(mux, uint32(proto.Kind_KIND_STORE), func(c *rpc.Ctx, m *proto.StoreMembers) {
		p := &plan{ID: m.Store, Revision: m.Revision}
		for _, x := range m.Members[:min(len(m.Members), wanted)] {
			p.Members = append(p.Members, member{x.Name, x.Route, x.Server})
		}
		p.Self = p.at(r.addr)
		if _, err := os.Stat(filepath.Join(r.dir, "jetstream")); err == nil {
			c.Fail(fmt.Errorf("store: %s has jobs of its own in %s; give it an empty "+options.Name("data-dir"), r.name, r.dir))
			return
		}
		r.requested.Go(func() { // in a goroutine: starting a server takes a while
			ctx, cancel := context.WithTimeout(context.Background(), keepLimit)
			defer cancel()
			if err := r.keep(ctx, p); err != nil {
				c.Fail(err)
				return
			}
			_ = c.Reply(&proto.Empty{})
		})
	})
	_, err := sys.Spawn(actorName, actor.PropsFromFunc(func(c actor.Context) { mux.Receive(c) }))
	return err
}
