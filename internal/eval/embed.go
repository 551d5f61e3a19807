package eval

import (
	"context"
	"log/slog"
	"net"

	"github.com/shoal-llm/shoal/cluster"
)

// Embedded is a cluster in this process with its API on a loopback port, so that it is used like
// any other server.
type Embedded struct {
	Address string
	cluster *cluster.Local
	cancel  context.CancelFunc
	served  chan error
}

// StartEmbedded starts a cluster and waits until it is ready.
func StartEmbedded(ctx context.Context, cfg cluster.LocalConfig) (_ *Embedded, err error) {
	if cfg.Serve.Logger == nil {
		cfg.Serve.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Embedded{}
	if e.cluster, err = cluster.New(ctx, cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.cluster.Close()
		}
	}()
	srv, err := cluster.NewAPI(e.cluster, e.cluster.Checkpoint(), e.cluster.ServeConfig(),
		cluster.APIConfig{Version: "eval", Logger: cfg.Serve.Logger})
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var run context.Context
	run, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.Address, e.served = lis.Addr().String(), make(chan error, 1)
	go func() { e.served <- srv.Serve(run, lis) }()
	return e, nil
}

// Close stops the API, then the cluster. It returns the error of the API.
func (e *Embedded) Close() error {
	e.cancel()
	err := <-e.served
	e.cluster.Close()
	return err
}
