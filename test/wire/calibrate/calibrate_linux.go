// Package calibrate measures delay, rate and loss between two hosts of a simulated network, and
// compares them with the topology.
package calibrate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// Result compares the requested and the measured properties of a path.
type Result struct {
	From, To       string
	ConfiguredRTT  time.Duration // sum of the delays of both directions, with the mean of the jitter
	RTT            time.Duration // median
	RTT99          time.Duration
	ConfiguredRate float64 // of TCP payload, in bytes per second; 0: unlimited
	Rate           float64
	ConfiguredLoss float64 // of round trips
	Loss           float64
	RoundTrips     int
}

// Options set the duration of a measurement.
type Options struct {
	RoundTrips int           // one every Every
	Every      time.Duration // gap between round trips
	Transfer   time.Duration // of the TCP connection
}

// Measure measures one pair of hosts of a running network.
func Measure(ctx context.Context, top *topology.Topology, from, to string, o Options) (*Result, error) {
	a, b := top.Host(from), top.Host(to)
	if a < 0 || b < 0 || a == b {
		return nil, fmt.Errorf("calibrate: want two hosts of the topology, not %q and %q", from, to)
	}
	r := asked(top, a, b)
	if err := r.echo(ctx, top, a, b, o); err != nil {
		return nil, fmt.Errorf("calibrate: round trips of %s and %s: %w", from, to, err)
	}
	if err := r.transfer(ctx, top, a, b, o); err != nil {
		return nil, fmt.Errorf("calibrate: transfer from %s to %s: %w", from, to, err)
	}
	return r, nil
}

// asked computes the delay and the rate of the path by the topology. Every packet of TCP has 32 bytes of a TCP header with
// timestamps, and every echo 8 bytes of UDP, after that of IP.
func asked(top *topology.Topology, a, b int) *Result {
	ip := 20
	if top.Hosts[b].Address.Is6() {
		ip = 40
	}
	r := &Result{From: top.Hosts[a].Name, To: top.Hosts[b].Name}
	arrive := 1.0
	for _, l := range top.Path(a, b) {
		r.ConfiguredRTT += 2*l.Delay + l.Jitter // a uniform jitter has half of it as its mean, twice
		arrive *= (1 - l.Loss) * (1 - l.Loss)
		if l.Rate > 0 {
			payload := float64(l.Rate) * float64(top.MTU-ip-32) / float64(top.MTU)
			if r.ConfiguredRate == 0 || payload < r.ConfiguredRate {
				r.ConfiguredRate = payload
			}
			r.ConfiguredRTT += 2 * time.Duration(float64(ip+8+echoBytes)/float64(l.Rate)*1e9)
		}
	}
	r.ConfiguredLoss = 1 - arrive
	return r
}

// echoBytes is the payload of an echo packet.
const echoBytes = 8

// grace is the margin of every deadline.
const grace = time.Second

// echo measures round trips, one after another, on threads with a real-time priority. Without it
// the result would be the time that a busy machine takes to wake a process.
func (r *Result) echo(ctx context.Context, top *topology.Topology, a, b int, o Options) error {
	server, to, err := listen(&top.Hosts[b])
	if err != nil {
		return err
	}
	client, _, err := listen(&top.Hosts[a])
	if err != nil {
		unix.Close(server)
		return err
	}
	defer unix.Close(client)
	over := make(chan struct{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer unix.Close(server)
		host.Punctual()
		var buf [64]byte
		for {
			select {
			case <-over:
				return
			default:
			}
			n, from, err := unix.Recvfrom(server, buf[:], 0)
			if err == nil {
				_ = unix.Sendto(server, buf[:n], 0, from) // a lost reply is a measurement
			}
		}
	}()
	result := make(chan []time.Duration)
	go func() {
		host.Punctual()
		result <- pings(ctx, client, to, o)
	}()
	all := <-result
	close(over)
	<-served
	if len(all) == 0 {
		return errors.New("no reply")
	}
	slices.Sort(all)
	r.RoundTrips = o.RoundTrips
	r.RTT, r.RTT99 = all[len(all)/2], all[len(all)*99/100]
	r.Loss = 1 - float64(len(all))/float64(o.RoundTrips)
	return ctx.Err()
}

// pings returns the times of the round trips that had a reply.
func pings(ctx context.Context, client int, to unix.Sockaddr, o Options) (all []time.Duration) {
	var out, in [8]byte
	for i := range o.RoundTrips {
		if ctx.Err() != nil {
			return nil
		}
		binary.LittleEndian.PutUint64(out[:], uint64(i))
		began := time.Now()
		if err := unix.Sendto(client, out[:], 0, to); err != nil {
			return all
		}
		for {
			n, _, err := unix.Recvfrom(client, in[:], 0)
			if err != nil {
				break // lost: the socket waits for replyTimeout
			}
			if n == len(in) && in == out { // not a late or repeated one
				all = append(all, time.Since(began))
				break
			}
		}
		time.Sleep(o.Every)
	}
	return all
}

// replyTimeout is how long a reply may take.
const replyTimeout = time.Second

// listen returns a UDP socket on a host, with its address.
func listen(h *topology.Host) (fd int, address unix.Sockaddr, err error) {
	err = host.In(h.Name, func() (err error) {
		family, own := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: h.Address.As16()})
		if h.Address.Is4() {
			family, own = unix.AF_INET, &unix.SockaddrInet4{Addr: h.Address.As4()}
		}
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.NsecToTimeval(int64(replyTimeout))
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err == nil {
			err = unix.Bind(fd, own)
		}
		if err == nil {
			address, err = unix.Getsockname(fd)
		}
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, address, err
}

func (r *Result) transfer(ctx context.Context, top *topology.Topology, a, b int, o Options) error {
	var l net.Listener
	err := host.In(top.Hosts[b].Name, func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(top.Hosts[b].Address.String(), "0"))
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	end := time.Now().Add(o.Transfer + 10*grace)
	_ = l.(*net.TCPListener).SetDeadline(end)
	var c net.Conn
	err = host.In(top.Hosts[a].Name, func() (err error) {
		c, err = (&net.Dialer{Timeout: 5 * grace}).DialContext(ctx, "tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(end)
	go func() { // ends when c is closed, or at its deadline
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	s, err := l.Accept()
	if err != nil {
		return err
	}
	defer s.Close()
	_ = s.SetDeadline(end)
	buf := make([]byte, 256<<10)
	count := func(d time.Duration) (total int64, took time.Duration, err error) {
		began := time.Now()
		for time.Since(began) < d {
			n, err := s.Read(buf)
			total += int64(n)
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, 0, err
			}
		}
		return total, time.Since(began), nil
	}
	if _, _, err := count(o.Transfer / 4); err != nil { // slow start
		return err
	}
	n, took, err := count(o.Transfer)
	r.Rate = float64(n) / took.Seconds()
	return err
}

// Text formats a result.
func (r *Result) Text() string {
	rate := "unlimited"
	if r.ConfiguredRate > 0 {
		rate = fmt.Sprintf("%.0f Mbit/s", r.ConfiguredRate*8/1e6)
	}
	return fmt.Sprintf("%s to %s: round trip %v asked, median %v, p99 %v of %d; TCP payload %s asked, %.0f Mbit/s measured; lost %.2f %% "+
		"asked, %.2f %% measured",
		r.From, r.To, r.ConfiguredRTT.Round(time.Microsecond), r.RTT.Round(time.Microsecond), r.RTT99.Round(time.Microsecond), r.RoundTrips,
		rate, r.Rate*8/1e6, 100*r.ConfiguredLoss, 100*r.Loss)
}
