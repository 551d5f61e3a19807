// Package exchange times small collectives between processes of a simulated network: Shoal's over
// NATS, and the same exchange over plain TCP connections.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Kind is a collective over a transport.
type Kind string

// The kinds of exchanges.
const (
	Gather Kind = "gather"  // all-gather over NATS
	Reduce Kind = "reduce"  // all-reduce over NATS, one shot where the collective chooses so
	OneWay Kind = "oneshot" // all-reduce over NATS, always one shot
	TwoWay Kind = "twoshot" // all-reduce over NATS, always two shots
	TCP    Kind = "tcp"     // all-gather over plain TCP
)

// Rank is one process.
type Rank struct {
	Kind    Kind
	Rank    int
	Hosts   []string // addresses of all ranks
	Floats  int      // that each rank has
	Rounds  int
	Timeout time.Duration
}

// warmup is the number of blocks that are not timed.
const warmup = 2

// firstPort is the first of three ports on every host.
const firstPort = 26090

// block is the number of rounds that are timed together. Ranks that start one delay apart alternate between
// rounds of no delay and of two, so only the mean is meaningful.
const block = 20

// Run connects to the other ranks and returns the time of a round on this rank: the median over blocks.
func (r *Rank) Run(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("rank %d: not finished in %v", r.Rank, r.Timeout))
	defer cancel()
	open := r.openNATS
	if r.Kind == TCP {
		open = r.openTCP
	}
	round, stop, err := open(ctx)
	if err != nil {
		return 0, fmt.Errorf("rank %d: %w", r.Rank, err)
	}
	defer stop()
	var took []time.Duration
	i := 0
	for range warmup + r.Rounds/block {
		began := time.Now()
		for range block {
			if err := round(ctx, i); err != nil {
				return 0, fmt.Errorf("rank %d, round %d: %w", r.Rank, i, err)
			}
			i++
		}
		took = append(took, time.Since(began)/block)
	}
	took = took[warmup:]
	slices.Sort(took)
	return took[len(took)/2], nil
}

// round runs one exchange.
type round func(ctx context.Context, i int) error

func (r *Rank) openNATS(ctx context.Context) (round, func(), error) {
	s, err := natsbus.Start(natsbus.Config{Name: fmt.Sprintf("rank-%d", r.Rank),
		Listen: net.JoinHostPort(r.Hosts[r.Rank], strconv.Itoa(firstPort)), ClientPort: firstPort + 1,
		Seeds: []string{net.JoinHostPort(r.Hosts[0], strconv.Itoa(firstPort))}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	size := len(r.Hosts)
	t, err := s.Join(ctx, "exchange", 1, r.Rank, make([]uint32, size))
	if err != nil {
		s.Shutdown()
		return nil, nil, err
	}
	cfg := collective.Config{Rank: r.Rank, Size: size, Epoch: 1, Deadline: r.Timeout}
	switch r.Kind {
	case OneWay:
		cfg.OneShotBytes = 1 << 30
	case TwoWay:
		cfg.OneShotBytes = 1
	}
	g, err := collective.NewGroup(cfg, t)
	if err != nil {
		_ = t.Close()
		s.Shutdown()
		return nil, nil, err
	}
	mine, out, recv := make([]float32, r.Floats), make([]float32, r.Floats), make([][]float32, size)
	nodes := make([][]tensor.Span, size)
	for i := range nodes {
		recv[i] = make([]float32, r.Floats)
		nodes[i] = tensor.Subtrees(i*tensor.MaxUnits/size, (i+1)*tensor.MaxUnits/size, tensor.MaxUnits)
	}
	parts := make([][]float32, len(nodes[r.Rank]))
	for i := range parts {
		parts[i] = mine
	}
	done := make(chan error, 1)
	end := func(err error) { done <- err }
	run := func(ctx context.Context, i int) error {
		if r.Kind == Gather {
			g.AllGather(collective.OpID(i+1), mine, recv, end)
		} else {
			g.AllReduceTree(collective.OpID(i+1), tensor.MaxUnits, nodes, parts, out, end)
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return run, func() {
		time.Sleep(lastMessages)
		_ = g.Close()
		<-g.Done()
		s.Shutdown()
	}, nil
}

// lastMessages is the time that a rank stays after its last round, so that the others get its messages.
const lastMessages = time.Second

// openTCP connects every pair of ranks by one connection, without delay of small packets.
func (r *Rank) openTCP(ctx context.Context) (round, func(), error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(r.Hosts[r.Rank], strconv.Itoa(firstPort)))
	if err != nil {
		return nil, nil, err
	}
	peers := make([]net.Conn, len(r.Hosts))
	stop := func() {
		l.Close()
		for _, c := range peers {
			if c != nil {
				c.Close()
			}
		}
	}
	end, _ := ctx.Deadline()
	for i := range r.Rank { // dial lower ranks; higher ones dial this one
		for peers[i] == nil {
			if peers[i], err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(r.Hosts[i], strconv.Itoa(firstPort))); err != nil {
				if ctx.Err() != nil {
					stop()
					return nil, nil, err
				}
				time.Sleep(50 * time.Millisecond) // it does not listen yet
			}
		}
		_, err = peers[i].Write([]byte{byte(r.Rank)})
	}
	_ = l.(*net.TCPListener).SetDeadline(end)
	for range len(r.Hosts) - 1 - r.Rank {
		c, e := l.Accept()
		var who [1]byte
		if e == nil {
			_, e = c.Read(who[:])
		}
		if e != nil || int(who[0]) >= len(peers) {
			stop()
			return nil, nil, errors.Join(e, fmt.Errorf("no connection of a rank"))
		}
		peers[who[0]] = c
	}
	message := make([]byte, 4*r.Floats)
	got := make(chan error, len(peers))
	for i, c := range peers {
		if i == r.Rank {
			continue
		}
		_ = c.SetDeadline(end)
		go r.receive(c, got)
	}
	run := func(ctx context.Context, _ int) error {
		for i := 1; i < len(peers); i++ {
			if _, err := peers[(r.Rank+i)%len(peers)].Write(message); err != nil {
				return err
			}
		}
		for range len(peers) - 1 {
			select {
			case err := <-got:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	return run, func() {
		time.Sleep(lastMessages)
		stop()
	}, err
}

// receive reads whole messages of one peer until the connection ends.
func (r *Rank) receive(c net.Conn, got chan<- error) {
	buf := make([]byte, 4*r.Floats)
	for {
		for at := 0; at < len(buf); {
			n, err := c.Read(buf[at:])
			if err != nil {
				got <- err
				return
			}
			at += n
		}
		got <- nil
	}
}
