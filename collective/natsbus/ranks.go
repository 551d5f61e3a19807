package natsbus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/shoal-llm/shoal/collective"
)

// StartServers starts n connected servers for measurements.
func StartServers(n int, name string) (servers []*Server, err error) {
	for i := range n {
		cfg := Config{Name: fmt.Sprintf("%s-%d", name, i), Log: slog.New(slog.DiscardHandler)}
		if i > 0 {
			cfg.Seeds = []string{servers[0].RouteAddr()}
		}
		s, err := Start(cfg)
		if err != nil {
			ShutdownServers(servers)
			return nil, err
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// ShutdownServers shuts servers down.
func ShutdownServers(servers []*Server) {
	for _, s := range servers {
		s.Shutdown()
	}
}

// Ranks forms a group for measurements, with one rank per entry of servers. Entries may be equal. stop
// closes the transports and groups that were opened, also after an error.
func Ranks(ctx context.Context, servers []*Server, group string) (groups []*collective.Group, stop func(), err error) {
	transports := make([]*Transport, 0, len(servers))
	stop = func() {
		for _, g := range groups {
			_ = g.Close()
			<-g.Done()
		}
		for _, t := range transports[len(groups):] {
			_ = t.Close()
		}
	}
	for r, s := range servers {
		t, err := s.Transport(TransportConfig{Group: group, Epoch: 1, Rank: r, Size: len(servers)})
		if err != nil {
			return nil, stop, err
		}
		transports = append(transports, t)
	}
	ready := make(chan error, len(transports))
	for _, t := range transports {
		go func() { ready <- t.Ready(ctx) }()
	}
	for range transports {
		if e := <-ready; e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return nil, stop, err
	}
	for r, t := range transports {
		g, err := collective.NewGroup(collective.Config{Rank: r, Size: len(servers), Epoch: 1, Deadline: 10 * time.Second}, t)
		if err != nil {
			return groups, stop, err
		}
		groups = append(groups, g)
	}
	return groups, stop, nil
}
