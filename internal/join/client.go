package join

import (
	"context"
	"crypto/ed25519"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/hostname"
)

// Request describes the joining machine.
type Request struct {
	Machine string // its name
	// Host is the address that it will listen at; empty: the one that it reaches the server from.
	Host string
	// Ports are TCP ports that it will listen at, which the server tries; none: any free one.
	Ports []int
}

// clockLimit is the largest difference between the clocks of a cluster: its certificates have dates.
const clockLimit = 2 * time.Hour

const dialLimit = 10 * time.Second

// Exchange gives a token to the server at addr and returns the grant, and the address that
// this machine should listen at. Nothing is sent to a server without the token's fingerprint.
func Exchange(ctx context.Context, addr string, t Token, a Request) (g *Grant, host string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit+exchangeLimit)
	defer cancel()
	if to, _, err := net.SplitHostPort(addr); err == nil {
		if err := hostname.CheckPeer(to); err != nil {
			return nil, "", fmt.Errorf("join: --join %s: %w", addr, err)
		}
	}
	d := net.Dialer{Timeout: dialLimit}
	if a.Host != "" { // a machine with several addresses is seen by the one that it will listen at
		if d.LocalAddr, err = net.ResolveTCPAddr("tcp", net.JoinHostPort(a.Host, "0")); err != nil {
			return nil, "", fmt.Errorf("join: %w", err)
		}
	}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, "", explainDial(addr, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	c := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // the fingerprint is checked in its place
		VerifyConnection: func(s tls.ConnectionState) error { return checkPin(s, addr, t) }})
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, "", explainHandshake(addr, err)
	}
	local, err := netip.ParseAddrPort(raw.LocalAddr().String())
	if err != nil {
		return nil, "", fmt.Errorf("join: %w", err)
	}
	if host = a.Host; host == "" {
		host = local.Addr().Unmap().String()
	}
	ports, closeAll, err := listenFor(host, a.Ports)
	if err != nil {
		return nil, "", err
	}
	defer closeAll()
	state := c.ConnectionState()
	exported, err := state.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, "", fmt.Errorf("join: %w", err)
	}
	r := request{Version: version, Token: t.ID, Machine: a.Machine, Ports: ports}
	r.Signature = ed25519.Sign(t.key(), signed(exported, &r))
	if err := send(c, r); err != nil {
		return nil, "", explainHandshake(addr, err)
	}
	var answer reply
	if err := receive(c, maxReply, &answer); err != nil {
		return nil, "", fmt.Errorf("join: %s sent no answer that can be read: %w; its log may have the reason", addr, err)
	}
	if answer.Refusal != nil {
		return nil, "", answer.Refusal
	}
	if answer.Grant == nil {
		return nil, "", fmt.Errorf("join: %s sent an answer without a grant: run the same build of Shoal on both machines", addr)
	}
	if err := answer.Grant.check(); err != nil {
		return nil, "", err
	}
	return answer.Grant, host, reachable(answer.Grant, host, time.Now())
}

// checkPin compares the certificate with the token's fingerprint.
func checkPin(s tls.ConnectionState, addr string, t Token) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it sent no certificate", ErrImpostor)
	}
	got := pinOf(s.PeerCertificates[0])
	if subtle.ConstantTimeCompare(got[:], t.Pin[:]) == 1 {
		return nil
	}
	return fmt.Errorf("%w: the certificate of %s has the fingerprint %s, token %s has %s. "+
		"Either another cluster listens there, or something between the machines intercepts the connection. Nothing was sent",
		ErrImpostor, addr, got.Short(), t.ID, t.Pin.Short())
}

// explainHandshake returns the reason of a failed handshake.
func explainHandshake(addr string, err error) error {
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, ErrImpostor):
		return err
	case errors.As(err, &record):
		return fmt.Errorf("join: the server at %s is not a join server (%v): with --token, --join is the address that `shoal up --cluster` or `shoal token create` printed", addr, err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), strings.Contains(err.Error(), "connection reset"):
		return fmt.Errorf("join: %s closed the connection: the server there is not a join server, "+
			"or too many connections came from this machine at once", addr)
	case isTimeout(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("join: %s accepted the connection and sent nothing: the server there is not a join server", addr)
	}
	return fmt.Errorf("join: %s: %w", addr, err)
}

// listenFor listens at the ports that the server will connect to; none: a free one.
func listenFor(host string, want []int) (ports []int, closeAll func(), err error) {
	var open []net.Listener
	closeAll = func() {
		for _, l := range open {
			l.Close()
		}
	}
	if len(want) == 0 {
		want = []int{0}
	}
	for _, port := range want[:min(len(want), maxPorts)] {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("join: this machine cannot listen at %s port %d: %w; choose another address or port with --bind and --ports",
				host, port, err)
		}
		open = append(open, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, closeAll, nil
}

// reachable returns an error if the cluster could not reach this machine, or if their clocks differ too
// much for certificates.
func reachable(g *Grant, host string, now time.Time) error {
	if d := now.Sub(g.Time); d > clockLimit || d < -clockLimit {
		return fmt.Errorf("join: the clock of this machine differs from that of the first one by %v: "+
			"the certificates of the cluster are valid by the clock, so set it (here it is %s, there %s)",
			d.Round(time.Minute), now.UTC().Format(timeLayout), g.Time.UTC().Format(timeLayout))
	}
	if g.Seen != host {
		return fmt.Errorf("join: this machine would listen at %s, but its connection reaches the first machine from %s. "+
			"The others connect to the address that a node listens at, and address translation between them is not supported: "+
			"give the address that the first machine can reach with --bind",
			host, g.Seen)
	}
	if len(g.Closed) > 0 {
		return fmt.Errorf("join: the first machine cannot connect back to %s, TCP port %s: "+
			"a firewall of this machine, or between the two, drops it. "+
			"Open ports here and name them: --bind %s:7070 --ports 7071 uses 7070 to 7074",
			host, strings.Join(g.Closed, ", "), host)
	}
	return nil
}
