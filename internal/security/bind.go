package security

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/options"
)

// ErrOpenBind is returned for an address that would expose the process without a secret.
var ErrOpenBind = errors.New("security: refusing to listen beyond this machine without a secret")

// CheckBind refuses a cluster address that other machines can reach if there is no cluster key:
// gossip, control and bus would then obey any client. addr is host:port. Host names except
// "localhost" count as reachable, since their resolution can change.
func CheckBind(addr string, haveKey bool) error {
	local, err := Loopback(addr)
	if err != nil || local || haveKey {
		return err
	}
	return fmt.Errorf("%w: %s is reachable from other machines and there is no cluster key; "+
		"make one with 'shoal keygen' and give it to every process as %s or "+options.Name("cluster-key")+
		", or listen on 127.0.0.1", ErrOpenBind, addr, EnvKey)
}

// CheckAPIBind is CheckBind for the HTTP API and its bearer keys.
func CheckAPIBind(addr string, haveAPIKey bool) error {
	local, err := Loopback(addr)
	if err != nil || local || haveAPIKey {
		return err
	}
	return fmt.Errorf("%w: the API on %s is reachable from other machines and no API key is set; "+
		"set one with "+options.Name("api-key")+" or SHOAL_API_KEY, or listen on 127.0.0.1", ErrOpenBind, addr)
}

// Loopback reports whether host:port is reachable from this machine only.
func Loopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("security: address %q is not host:port: %w", addr, err)
	}
	if strings.EqualFold(host, "localhost") {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false, nil //nolint:nilerr // "" is every interface; a name may resolve to anything
	}
	return ip.Unmap().IsLoopback(), nil
}

// HostPort splits an address into its host and its numeric port.
func HostPort(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port: %w", addr, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q has no port between 0 and 65535", addr)
	}
	return host, port, nil
}
