package hostname

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Place is the address on which a process listens, and the name by which others reach it.
type Place struct {
	Bind string // IP:port, or localhost:port
	Name string // host name to which others connect; empty: the host of Bind
}

// Host returns the host to which others connect; empty for the zero Place.
func (p Place) Host() string {
	if p.Name != "" {
		return p.Name
	}
	host, _, _ := net.SplitHostPort(p.Bind) // Locate has split it
	return host
}

// With returns an address of this process with the host to which others connect.
func (p Place) With(addr string) string {
	if _, port, err := net.SplitHostPort(addr); err == nil && p.Name != "" {
		return net.JoinHostPort(p.Name, port)
	}
	return addr
}

const (
	// Limit is how long a name may lead nowhere: a machine may start before its resolver, or a record may be old.
	Limit       = time.Minute
	pause       = time.Second
	logInterval = 10 * time.Second
)

// Locate resolves the host of an address, host:port, if it is a name. It tries again for Limit.
func Locate(ctx context.Context, bind string, log *slog.Logger) (Place, error) {
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return Place{}, fmt.Errorf("hostname: %q is not host:port: %w", bind, err)
	}
	if !IsName(host) {
		return Place{Bind: bind}, nil
	}
	var ip netip.Addr
	err = Retry(ctx, log, "name of this machine: "+host, func(ctx context.Context) (err error) {
		ip, err = resolve(ctx, host)
		return err
	})
	return Place{Bind: net.JoinHostPort(ip.String(), port), Name: host}, err
}

func resolve(ctx context.Context, name string) (netip.Addr, error) {
	resolved, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return netip.Addr{}, fmt.Errorf("%w: %s does not resolve (%s): correct the name, /etc/hosts or the DNS record", ErrName, name, dns.Err)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: %w", ErrName, err)
	}
	for i := range resolved {
		resolved[i] = resolved[i].Unmap()
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("hostname: addresses of this machine: %w", err)
	}
	var own []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return choose(name, resolved, own)
}

// Retry calls try until it succeeds, ctx ends or Limit has passed, and logs why it waits.
func Retry(ctx context.Context, log *slog.Logger, what string, try func(context.Context) error) error {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	began, loggedAt := time.Now(), time.Time{}
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // the end of ctx cuts the last attempt short
			last = err
		}
		if ctx.Err() == nil && time.Since(loggedAt) >= logInterval {
			log.Warn("waiting for a name", "what", what, "error", last, "for", Limit)
			loggedAt = time.Now()
		}
		select {
		case <-ctx.Done():
			if parent.Err() != nil {
				return context.Cause(parent)
			}
			return fmt.Errorf("%w (tried for %v)", last, time.Since(began).Round(time.Second))
		case <-time.After(pause):
		}
	}
}
