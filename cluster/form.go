package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"shoal/cluster/gossip"
	"shoal/jobs/files"
	"shoal/jobs/journal"
	"shoal/security"
)

const (
	formEvery = 2 * time.Second
	keepLimit = 20 * time.Second
	moveLimit = 10 * time.Minute
)

// formStore watches for the processes that the operator has named to keep copies and,
// when two of them are here, moves the store of one copy into a replicated one. From then
// on it tends that one.
func (c *Coordinator) formStore() {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		t := time.NewTicker(formEvery)
		defer t.Stop()
		said := ""
		for {
			c.storeOp.Lock()
			why := c.formOrTend()
			c.storeOp.Unlock()
			if why != "" && why != said {
				c.log.Warn(why)
			}
			said = why
			select {
			case <-t.C:
			case <-c.names.changed:
			case <-c.ctx.Done():
				return
			}
		}
	}()
}

// formOrTend says what hinders it.
func (c *Coordinator) formOrTend() string {
	if c.dataStore.alone == nil {
		if err := c.tend(); err != nil && c.ctx.Err() == nil {
			return "the members of the store cannot be brought up to date: " + err.Error()
		}
		return ""
	}
	p, err := c.propose()
	if err != nil {
		return "jobs have one copy, on this machine: " + err.Error()
	}
	if err := c.replicate(p); err != nil {
		return "the store was not replicated; trying again: " + err.Error()
	}
	return ""
}

// propose picks the keepers among the processes that were named: this process, then
// standbys, then nodes.
func (c *Coordinator) propose() (*plan, error) {
	if p, _ := c.dataStore.keeper.now(); p != nil {
		return p, nil // begun before
	}
	var others []gossip.Member
	for _, m := range c.bus.gossip.Members() {
		if m.Meta.Store != "" && m.Name != c.bus.nats.Name() && m.Meta.State == gossip.Ready && c.names.has(m.Name) {
			others = append(others, m)
		}
	}
	if len(others) < keepers-1 {
		return nil, fmt.Errorf("copies go to two further processes that the operator names (--store-nodes, or shoal store add) and that have a --data-dir; named: %s; here: %d", c.names, len(others))
	}
	standby := func(m gossip.Member) int {
		if m.Meta.Role == string(security.RoleCoordinator) {
			return 0
		}
		return 1
	}
	slices.SortFunc(others, func(a, b gossip.Member) int {
		if d := standby(a) - standby(b); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	self := c.bus.nats.Name()
	p := &plan{ID: hex.EncodeToString(id[:]), Self: self, Members: []planMember{{Name: self, Route: c.dataStore.keeper.addr}}}
	for _, m := range others[:keepers-1] {
		p.Members = append(p.Members, planMember{Name: m.Name, Route: m.Meta.Store})
	}
	return p, nil
}

// replicate forms the store of a plan and moves what there is into it. The move
// is done when the record of the lease is there: until then the old store counts,
// from then on the new one.
func (c *Coordinator) replicate(p *plan) error {
	ctx, cancel := context.WithTimeout(c.ctx, moveLimit)
	defer cancel()
	d := c.dataStore
	byRoute := map[string]gossip.Member{}
	for _, m := range c.bus.gossip.Members() {
		byRoute[m.Meta.Store] = m
	}
	for _, x := range p.Members {
		if x.Name == p.Self {
			continue
		}
		m, ok := byRoute[x.Route]
		if !ok {
			return fmt.Errorf("cluster: %s, who was to keep a copy at %s, is not here", x.Name, x.Route)
		}
		if err := c.tellMember(ctx, m, p); err != nil {
			return err
		}
	}
	if err := d.keeper.keep(p); err != nil {
		return err
	}
	lease, nc, err := d.replicated(ctx)
	if err != nil {
		return err
	}
	_, bus := d.keeper.now()
	to, err := openLog(bus, keepers)
	if err != nil {
		nc.Close()
		return err
	}
	files, err := d.openFiles()
	if err != nil {
		_ = to.Close()
		nc.Close()
		return err
	}
	began := time.Now()
	c.mount.Refuse("The job store is being replicated.", 2*time.Second)
	d.closeStore()
	messages, err := c.move(ctx, to, files, lease)
	if err != nil {
		_ = to.Close()
		_ = files.Close()
		nc.Close()
		if err := d.openStore(); err != nil {
			c.mount.Refuse("The job store cannot be opened: "+err.Error()+".", time.Minute)
			return err
		}
		c.startJobs()
		return err
	}
	d.nc.Close()
	d.alone.Shutdown()
	d.mu.Lock()
	d.alone, d.lease, d.nc, d.kind = nil, lease, nc, "replicated"
	d.mu.Unlock()
	if err := d.retireSingle(p); err != nil {
		c.log.Warn("the old store could not be put aside", "error", err)
	}
	if err := d.takeFiles(files, true); err != nil {
		c.log.Warn("the files could not be put aside", "error", err)
	}
	if err := d.use(to, files); err != nil {
		c.mount.Refuse("The job store cannot be read: "+err.Error()+".", time.Minute)
		return err
	}
	c.startJobs()
	c.log.Info("the store is replicated", "store", p.ID, "members", p.routes(), "messages", messages, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// move copies the files, the log, and then the lease.
func (c *Coordinator) move(ctx context.Context, to journal.Log, shared *files.Shared, lease register) (int, error) {
	if err := shared.Clear(ctx); err != nil { // of an earlier try
		return 0, err
	}
	if err := c.dataStore.takeFiles(shared, false); err != nil {
		return 0, err
	}
	from, err := openLog(c.dataStore.alone, 1)
	if err != nil {
		return 0, err
	}
	n, err := journal.Copy(ctx, from, to)
	if err = errors.Join(err, from.Close()); err != nil {
		return 0, err
	}
	return n, c.election.move(ctx, lease)
}

// retireSingle puts the store of one copy aside: it must never be read again.
func (d *dataStore) retireSingle(p *plan) error {
	if err := os.Rename(d.singleDir(), filepath.Join(d.path, "jetstream-before-"+p.ID)); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}
