package join

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// Deadlines of one exchange.
const (
	exchangeLimit = 15 * time.Second // all of it
	handshakeTime = 5 * time.Second
	dialBackLimit = 3 * time.Second
)

// server exchanges tokens for grants.
type server struct {
	folder *Folder
	grant  func() (*Grant, error)
	log    *slog.Logger
	limit  limiter
}

// Serve exchanges tokens at l until ctx ends, and closes l. grant makes the answer to a valid
// one; Serve fills in Seen, Closed and Time.
func (f *Folder) Serve(ctx context.Context, l net.Listener, grant func() (*Grant, error), log *slog.Logger) error {
	s := &server{folder: f, grant: grant, log: log}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // no descriptor is left, or the like
			log.Warn("the join server cannot accept a connection", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		from, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err != nil || !s.limit.enter(source(from.Addr())) {
			c.Close()
			continue
		}
		wg.Go(func() {
			defer s.limit.leave(source(from.Addr()))
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.handle(ctx, c, from.Addr().Unmap())
		})
	}
}

// handle answers one connection.
func (s *server) handle(ctx context.Context, raw net.Conn, from netip.Addr) {
	_ = raw.SetDeadline(time.Now().Add(handshakeTime)) // a connection that is gone fails below
	c := tls.Server(raw,
		&tls.Config{Certificates: []tls.Certificate{s.folder.identity.cert}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true})
	if err := c.HandshakeContext(ctx); err != nil {
		s.log.Debug("a connection to the join server ended in the handshake", "from", from, "error", err)
		return
	}
	_ = raw.SetDeadline(time.Now().Add(exchangeLimit))
	var r request
	if err := receive(c, maxRequest, &r); err != nil {
		s.log.Debug("a request to the join server cannot be read", "from", from, "error", err)
		return
	}
	g, refusal := s.answer(ctx, c.ConnectionState(), &r, from)
	if refusal != nil {
		s.log.Warn("a machine was refused", "from", from, "token", r.Token[:min(len(r.Token), 2*idSize)], "code", refusal.Code)
	}
	if err := send(c, reply{Grant: g, Refusal: refusal}); err != nil {
		s.log.Debug("a machine did not take its answer", "from", from, "error", err)
		return
	}
	_ = c.CloseWrite()
}

// answer decides on a request.
func (s *server) answer(ctx context.Context, state tls.ConnectionState, r *request, from netip.Addr) (*Grant, *Refusal) {
	now := time.Now()
	if s.limit.blocked(source(from), now) {
		return nil, &Refusal{CodeLimited, fmt.Sprintf("too many wrong tokens came from %s: wait %v", from, failEvery)}
	}
	if r.Version != version {
		return nil, &Refusal{CodeVersion,
			fmt.Sprintf("this machine joins by version %d, the first machine by version %d: run the same build of Shoal on both",
				r.Version, version)}
	}
	failed := func(err error) (*Grant, *Refusal) {
		s.log.Error("the join server cannot answer", "from", from, "error", err)
		return nil, &Refusal{CodeFailed, "the first machine failed to answer; its log has the reason"}
	}
	records, err := s.folder.Tokens.read()
	if err != nil {
		return failed(err)
	}
	exported, err := state.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return failed(err)
	}
	if refusal := judge(records, r.Token, signed(exported, r), r.Signature, now); refusal != nil {
		if refusal.Code == CodeWrong {
			s.limit.failed(source(from), now)
		}
		return nil, refusal
	}
	if !machineName.MatchString(r.Machine) || len(r.Ports) > maxPorts {
		return nil, &Refusal{CodeFailed, "the name of the machine must have 1 to 64 letters, digits, '.', '_', '-'; at most 5 ports are tried"}
	}
	g, err := s.grant()
	if err != nil {
		return failed(err)
	}
	g.Seen, g.Time = from.String(), now
	g.Closed = dialBack(ctx, from, r.Ports)
	switch err := s.folder.Tokens.used(r.Token, r.Machine); {
	case errors.Is(err, errRevoked):
		return nil, noSuchToken()
	case err != nil:
		return failed(err)
	}
	s.log.Info("a machine got the cluster key for a token", "machine", r.Machine, "from", from, "token", r.Token)
	return g, nil
}

// dialBack tries to connect to ports of the machine that asks, and returns which are closed and
// why. No other machine is dialled.
func dialBack(ctx context.Context, to netip.Addr, ports []int) (closed []string) {
	ctx, cancel := context.WithTimeout(ctx, dialBackLimit)
	defer cancel()
	results := make([]string, len(ports))
	var wg sync.WaitGroup
	for i, port := range ports {
		wg.Go(func() {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(to.String(), strconv.Itoa(port)))
			if err != nil {
				results[i] = fmt.Sprintf("%d (%v)", port, plainDial(err))
				return
			}
			c.Close()
		})
	}
	wg.Wait()
	for _, r := range results {
		if r != "" {
			closed = append(closed, r)
		}
	}
	return closed
}
