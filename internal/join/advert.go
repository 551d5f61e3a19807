package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/mdns"
)

// service is the name of adverts on the local network (RFC 6763).
const service = "_shoal._tcp"

// An advert's text: its version, the cluster's name and the server's fingerprint. None is secret.
const (
	advertVersion = "v=1"
	advertCluster = "cluster="
	advertPin     = "sha256="
)

// Found is a cluster that answered on the local network. Any machine can send such an answer. Only a
// token proves it.
type Found struct {
	Cluster string
	Addr    string // of the server
	Pin     Pin
}

// Advertise answers mDNS queries for clusters until stop is called. addr is the address of the
// server; queries on its network are answered.
func Advertise(cluster, addr string, pin Pin) (stop func(), err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	ip := net.ParseIP(host)
	iface, err := interfaceOf(ip)
	if err != nil {
		return nil, err
	}
	// The host name is of this server alone: askers join records by it.
	zone, err := mdns.NewMDNSService(cluster+"-"+pin.Short(), service, "", "shoal-"+pin.Short()+".local.", port, []net.IP{ip},
		[]string{advertVersion, advertCluster + cluster, advertPin + pin.Text()})
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	s, err := mdns.NewServer(&mdns.Config{Zone: zone, Iface: iface, Logger: quiet})
	if err != nil {
		return nil, fmt.Errorf("join: %s takes no multicast on %s: %w", host, iface.Name, err)
	}
	return func() { _ = s.Shutdown() }, nil // it returns no error
}

// quiet drops the log messages of the library: every foreign packet that it cannot read.
var quiet = log.New(io.Discard, "", 0)

// interfaceOf returns the interface with an address.
func interfaceOf(ip net.IP) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return &i, nil
			}
		}
	}
	return nil, fmt.Errorf("join: no interface of this machine has the address %s", ip)
}

// A query is sent queryTries times, because packets get lost. Answers are collected for queryWait each time.
const (
	queryTries = 2
	queryWait  = 1500 * time.Millisecond
	mostSeen   = 64 // maximum number of answers to one query
)

// ErrNoMulticast is returned where no interface can ask.
var ErrNoMulticast = errors.New("join: this machine cannot send multicast")

// Discover asks all local networks for clusters, and returns them sorted by name and address.
func Discover(ctx context.Context) ([]Found, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		found     []Found
		failed    []error
		requested bool
	)
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagMulticast == 0 {
			continue
		}
		for _, v6 := range []bool{false, true} { // one that fails must not end the other
			wg.Go(func() {
				got, err := ask(ctx, &i, v6)
				mu.Lock()
				defer mu.Unlock()
				if found = append(found, got...); err == nil {
					requested = true
				} else {
					failed = append(failed, fmt.Errorf("%s: %w", i.Name, err))
				}
			})
		}
	}
	wg.Wait()
	if !requested && len(found) == 0 {
		if len(failed) == 0 {
			failed = []error{errors.New("no interface that is up has it on")}
		}
		return nil, fmt.Errorf("%w: %w; without a default route, one for multicast helps (ip route add 224.0.0.0/4 dev INTERFACE); or name "+
			"the first machine with --join", ErrNoMulticast, errors.Join(failed...))
	}
	slices.SortFunc(found, func(a, b Found) int {
		return strings.Compare(a.Cluster+" "+a.Addr+a.Pin.Text(), b.Cluster+" "+b.Addr+b.Pin.Text())
	})
	return slices.Compact(found), nil
}

// ask asks on one interface, by IPv4 or IPv6.
func ask(ctx context.Context, i *net.Interface, v6 bool) (found []Found, err error) {
	for range queryTries {
		entries := make(chan *mdns.ServiceEntry, mostSeen)
		if err := mdns.QueryContext(ctx, &mdns.QueryParam{Service: service, Timeout: queryWait, Interface: i, Entries: entries, DisableIPv4: v6,
			DisableIPv6: !v6, Logger: quiet}); err != nil {
			return found, err
		}
		close(entries)
		for e := range entries {
			if f, ok := readAdvert(e); ok {
				found = append(found, f)
			}
		}
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
	}
	return found, nil
}

// readAdvert reads an answer that any machine may have sent.
func readAdvert(e *mdns.ServiceEntry) (f Found, ok bool) {
	if !strings.HasSuffix(e.Name, "."+service+".local.") || !slices.Contains(e.InfoFields, advertVersion) || e.Port < 1 || e.Port > 65535 {
		return f, false
	}
	pinned := false
	for _, field := range e.InfoFields {
		if name, ok := strings.CutPrefix(field, advertCluster); ok && clusterName.MatchString(name) { // it is printed
			f.Cluster = name
		}
		if text, ok := strings.CutPrefix(field, advertPin); ok {
			f.Pin, pinned = parsePin(text)
		}
	}
	host := ""
	switch {
	case e.AddrV4 != nil:
		host = e.AddrV4.String()
	case e.AddrV6IPAddr != nil:
		host = e.AddrV6IPAddr.String()
	}
	f.Addr = net.JoinHostPort(host, strconv.Itoa(e.Port))
	return f, f.Cluster != "" && pinned && host != ""
}

// Choose picks the cluster to join from those that were found: by the fingerprint of a token
// when there is one, and by name when one was given.
func Choose(found []Found, cluster string, token *Token) (Found, error) {
	var fit []Found
	for _, f := range found {
		if (token == nil || f.Pin == token.Pin) && (cluster == "" || f.Cluster == cluster) {
			fit = append(fit, f)
		}
	}
	seen := ""
	for _, f := range found {
		seen += fmt.Sprintf("\n  %-20s at %s, fingerprint %s", f.Cluster, f.Addr, f.Pin.Short())
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(found) == 0:
		return Found{}, errors.New("join: no cluster answers on the local network: `shoal up --cluster NAME` on the first machine answers; " +
			"where UDP port 5353 is closed or the network has several parts, name that machine with --join ADDRESS")
	case len(fit) == 0 && token != nil:
		return Found{}, fmt.Errorf("join: none of the clusters on the local network made token %s, whose fingerprint is %s:%s",
			token.ID, token.Pin.Short(), seen)
	case len(fit) == 0:
		return Found{}, fmt.Errorf("join: no cluster %q answers on the local network, but:%s", cluster, seen)
	case cluster == "":
		return Found{}, fmt.Errorf("join: several clusters answer on the local network: choose one with --cluster NAME:%s", seen)
	}
	return Found{}, fmt.Errorf("join: several clusters %q answer on the local network: choose one with --join ADDRESS:%s", cluster, seen)
}
