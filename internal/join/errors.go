package join

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// ErrImpostor: the server is not the one that made the token.
var ErrImpostor = errors.New("join: another server than the one that made the token")

// plainDial returns the reason of a failed connection, without addresses.
func plainDial(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &dns):
		return dns.Err
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route"
	case isTimeout(err):
		return "no answer"
	}
	return err.Error()
}

// explainDial returns the error of a failed connection, with its usual cause and advice.
func explainDial(addr string, err error) error {
	_, port, _ := net.SplitHostPort(addr)
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("join: nothing listens at %s: check that `shoal up --cluster` runs there, and that this is the address that it printed",
			addr)
	case errors.As(err, &dns):
		return fmt.Errorf("join: %s: the name is unknown here (%s): give an IP address", addr, dns.Err)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("join: there is no route from here to %s: the machines need a common network; the first one takes another address "+
			"with --bind", addr)
	case isTimeout(err):
		return fmt.Errorf("join: no answer from %s: a firewall drops TCP port %s, or no machine has this address; open the port on the first "+
			"machine, or choose another one with --join-port", addr, port)
	}
	return fmt.Errorf("join: cannot connect to %s: %w", addr, err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
