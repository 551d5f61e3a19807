package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/join"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/topology"
)

// NetworkFlags let other machines join the cluster of shoal up.
type NetworkFlags struct {
	Cluster string        `env:"SHOAL_CLUSTER" placeholder:"NAME" help:"Name of a cluster that other machines can join. Listens on the network, stores a key for the cluster, and prints the command to run on them."`
	Bind    string        `env:"SHOAL_BIND" placeholder:"ADDRESS[:PORT]" help:"With --cluster: IP address or name of this machine for the other machines, and gossip port. With a name, the address may change between two starts (default: the address of the default route, port 7070)."`
	Ports   cluster.Ports `env:"SHOAL_PORTS" placeholder:"FIRST" help:"With --cluster: first of the consecutive ports on the host of --bind: four for the coordinator, then five each for the standby and for every node (default: free ports)."`
	Expect  int           `placeholder:"N" help:"With --cluster: nodes to wait for before the first placement, including those on other machines (default: the nodes of this command)."`
	tokenServerFlags
}

// tokenServerFlags configure the server that exchanges tokens for the cluster key.
type tokenServerFlags struct {
	JoinPort  int           `range:"1..65535" placeholder:"PORT" help:"With --cluster: port on --bind where machines exchange their token (default: 7069)."`
	TokenLife time.Duration `name:"token-life" default:"1h" help:"With --cluster: time until the printed token expires, 1m to 168h; 0 prints none (shoal token create makes one)."`
	Advertise bool          `default:"true" negatable:"" help:"With --cluster: answer shoal node --discover on the local network."`
}

func (f *tokenServerFlags) checkLife() error {
	if f.TokenLife != 0 && (f.TokenLife < join.ShortestLife || f.TokenLife > join.LongestLife) {
		return fmt.Errorf("--token-life %v: want %v to %v, or 0 for no token", f.TokenLife, join.ShortestLife, join.LongestLife)
	}
	return nil
}

// Default ports of a first machine, if they are free.
const (
	joinPort   = 7069
	gossipPort = 7070
)

// Numbers of ports with --ports. The coordinator uses the port of --bind for gossip, which is not
// counted; those of the other processes are.
const (
	portsOfCoordinator = 4
	portsOfOthers      = 5
)

// network holds the addresses and the join server of a first machine. With the zero value all
// processes listen on loopback.
type network struct {
	tokenServer
	place   hostname.Place // of this machine: an IP address with port 0, and its name
	gossip  []string
	folder  *join.Folder
	closers []func()
}

// tokenServer holds the settings of the server that exchanges tokens.
type tokenServer struct {
	tokenServerFlags
	cluster, bind, dataDir string
	model                  string          // reference of the model; "" for a folder of this machine
	key                    *ClusterKeyFlag // the file of a new key is set here, if there is none
	ports                  []int           // gossip port of each coordinator, except bind's; 0: any
}

// loopback is the host of clusters on one machine.
const loopback = "127.0.0.1"

// bindHost returns the host where the processes of this command listen.
func (n *network) bindHost() string { return cmp.Or(n.place.Host(), loopback) }

// bindGossip returns the gossip address of coordinator i.
func (n *network) bindGossip(i int) string {
	if i < len(n.gossip) {
		return n.gossip[i]
	}
	return net.JoinHostPort(n.bindHost(), "0")
}

func (n *network) close() {
	for _, f := range n.closers {
		f()
	}
	n.closers = nil
}

// checkNetwork refuses invalid values of the flags of --cluster.
func (c *Up) checkNetwork() error {
	if c.Cluster == "" {
		return nil
	}
	if err := join.CheckCluster(c.Cluster); err != nil {
		return err
	}
	if c.Bind != "" {
		if _, _, err := splitBind(c.Bind); err != nil {
			return err
		}
	}
	all := portsOfCoordinator + portsOfOthers*(c.coordinators()-1+c.Nodes)
	last := 65536 - all
	switch {
	case c.Ports < 0 || int(c.Ports) > last:
		return fmt.Errorf("--ports %d: want 1 to %d, the first of %d, or 0", c.Ports, last, all)
	case c.Expect != 0 && (c.Expect < c.Nodes || c.Expect > topology.DefaultMaxNodes):
		return fmt.Errorf("--expect %d: want %d, the nodes of this command, to %d", c.Expect, c.Nodes, topology.DefaultMaxNodes)
	}
	return c.checkLife()
}

// splitBind parses --bind: an IP address or a name with an optional port. The port is 0 if it is not set.
func splitBind(text string) (host string, port int, err error) {
	host = text
	if hostname.Check(text) != nil {
		if h, p, err := security.HostPort(text); err == nil {
			host, port = h, p
		}
	}
	if err := hostname.Check(host); err != nil {
		return "", 0, fmt.Errorf("--bind %q: want an IP address or the name of this machine, by which the others can reach it, or "+
			"ADDRESS:PORT: %w", text, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String() // the form in which the first machine writes addresses
	}
	return host, port, nil
}

// clustersHome returns the folder of the clusters whose first machine is this one, or "" if the
// user has no home directory.
func clustersHome() string {
	if home := StateHome(); home != "" {
		return filepath.Join(home, "shoal", "clusters")
	}
	return ""
}

// clusterFolder returns the folder where a first machine stores the key, the addresses and the
// tokens.
func clusterFolder(dataDir, name string) (string, error) {
	if dataDir != "" {
		return filepath.Join(dataDir, "cluster"), nil
	}
	if home := clustersHome(); home != "" {
		return filepath.Join(home, name), nil
	}
	return "", errors.New("this user has no home directory for the cluster key: set a folder with --data-dir DIR")
}

// openNetwork opens the network of a first machine. Without --cluster it does nothing.
func (c *Up) openNetwork(e *ui.Env, serve *cluster.ServeConfig) error {
	if c.Cluster == "" {
		return nil
	}
	c.net.tokenServer = tokenServer{tokenServerFlags: c.tokenServerFlags, cluster: c.Cluster, bind: c.Bind, dataDir: c.DataDir,
		model: c.reference(serve.Model), key: &c.ClusterKeyFlag}
	for i := range c.coordinators() {
		port, _ := c.processPorts(i)
		c.net.ports = append(c.net.ports, port)
	}
	return c.net.open(e, serve.Logger)
}

// open opens the folder of a first machine, chooses its addresses, and starts the server that
// exchanges tokens.
func (n *network) open(e *ui.Env, log *slog.Logger) (err error) {
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	dir, err := clusterFolder(n.dataDir, n.cluster)
	if err != nil {
		return err
	}
	if n.folder, err = join.OpenFolder(dir, true); err != nil {
		return notKept("the cluster key", err)
	}
	given, err := n.key.Key()
	if err != nil {
		return err
	}
	if given.IsZero() {
		if n.key.ClusterKeyFile, err = n.folder.KeyFile(); err != nil {
			return err
		}
	}
	before, err := n.folder.Addresses()
	if err != nil {
		return err
	}
	l, err := n.chooseAddresses(e.Ctx, before, log)
	if err != nil {
		return err
	}
	at := n.place.With(l.Addr().String())
	if err := n.folder.SaveAddresses(join.Addresses{Join: at, Gossip: strings.Join(n.gossip, ",")}); err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(e.Ctx)
	done := make(chan struct{})
	n.closers = append(n.closers, func() { cancel(); <-done })
	go func() {
		defer close(done)
		if err := n.folder.Serve(ctx, l, n.grant, log); err != nil {
			log.Error("join server stopped: no more machines can join", "error", err)
		}
	}()
	if n.Advertise {
		stop, err := join.Advertise(n.cluster, l.Addr().String(), n.folder.Pin())
		if err != nil {
			log.Info("advertising is off: shoal node --discover does not find this cluster", "reason", err)
		} else {
			n.closers = append(n.closers, stop)
		}
	}
	if n.TokenLife == 0 {
		return nil
	}
	return printJoinLine(e.Stdout, n.folder, at, n.TokenLife)
}

// chooseAddresses chooses the addresses of this machine: those of the flags, else those of the
// last start, else the default ports if they are free. It opens the listener of the join server.
func (n *network) chooseAddresses(ctx context.Context, before join.Addresses, log *slog.Logger) (net.Listener, error) {
	host, port, err := splitBind(cmp.Or(n.bind, before.Join))
	switch {
	case err == nil && hostname.IsName(host): // Locate checks it
		if n.bind == "" {
			port = 0
		}
	case n.bind == "":
		port = 0
		if err != nil || !isLocalAddress(host) {
			if before.Join != "" {
				log.Warn("address of the last start is gone: machines that joined before cannot find this one until --bind sets an earlier address, "+
					"or they join again", "address", host)
				before = join.Addresses{}
			}
			all, err := join.HostAddrs()
			if err != nil {
				return nil, err
			}
			addr, err := join.ChooseAddr(all)
			if err != nil {
				return nil, err
			}
			host = addr.String()
		}
	case err != nil:
		return nil, err
	case !isLocalAddress(host):
		return nil, fmt.Errorf("--bind %s: this machine does not have that address; `ip address` lists its addresses", n.bind)
	}
	if n.place, err = hostname.Locate(ctx, net.JoinHostPort(host, "0"), log); err != nil {
		return nil, fmt.Errorf("--bind %s: %w", host, err)
	}
	if host, _, err = net.SplitHostPort(n.place.Bind); err != nil {
		return nil, err
	}
	l, err := listenNear(host, n.JoinPort, portOf(before.Join), joinPort)
	if err != nil {
		return nil, fmt.Errorf("--join-port: %w", err)
	}
	was := strings.Split(before.Gossip, ",")
	for i := range n.ports {
		kept := 0
		if i > 0 {
			port = n.ports[i]
		}
		if i < len(was) {
			kept = portOf(was[i])
		}
		g, err := listenNear(host, port, kept, gossipPort+i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--bind: %w", err), l.Close())
		}
		defer g.Close() // after all are chosen, since gossip opens them itself
		n.gossip = append(n.gossip, n.place.With(g.Addr().String()))
	}
	return l, nil
}

// listenNear listens at the requested port (asked), or at the port of the last start (before). Other machines know
// this address, so no other port is tried. If both are 0 it uses the usual port, or any free port.
func listenNear(host string, asked, before, usual int) (net.Listener, error) {
	if port := cmp.Or(asked, before); port != 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("this machine cannot listen at %s port %d: %w; stop the other program, or choose another port", host, port, err)
		}
		return l, nil
	}
	if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(usual))); err == nil {
		return l, nil
	}
	return fixedport.Listen(host)
}

// isLocalAddress reports whether this machine has an address.
func isLocalAddress(host string) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// portOf returns the port of an address, or 0.
func portOf(addr string) int {
	_, port, err := security.HostPort(addr)
	if err != nil {
		return 0
	}
	return port
}

// grant returns the data that a machine gets for a token. It reads the key file each time, since
// the file may have changed.
func (n *network) grant() (*join.Grant, error) {
	key, err := n.key.Key()
	if err != nil {
		return nil, err
	}
	g := &join.Grant{Cluster: n.cluster, Join: n.gossip, Model: n.model}
	for _, k := range key.Keys() {
		g.Keys = append(g.Keys, k.Text())
	}
	return g, nil
}

// printJoinLine makes a token and prints the command that uses it.
func printJoinLine(w io.Writer, f *join.Folder, at string, life time.Duration) error {
	token, _, err := f.Tokens.Create(life)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "to add a machine, run this on it within %s; it works for several machines:\n\n  shoal node --join %s --token %s\n\n",
		plainDuration(life), at, token.Text())
	return nil
}

// plainDuration formats a duration without zero parts: 1h, 1h30m.
func plainDuration(d time.Duration) string {
	text := d.Round(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// tokenCommand returns the command that makes another token for a cluster.
func tokenCommand(cluster, dataDir string) string {
	if dataDir != "" {
		return "shoal token create --data-dir " + dataDir
	}
	return "shoal token create --cluster " + cluster
}

// coordinators returns the number of coordinator processes of this command.
func (c *Up) coordinators() int {
	if c.Standby {
		return 2
	}
	return 1
}

// processPorts returns the gossip port and the first of the other ports of process i with
// --ports. 0 means any port. Coordinators are first, then nodes. The gossip port of process 0 is
// that of --bind.
func (c *Up) processPorts(i int) (gossip int, first cluster.Ports) {
	switch {
	case c.Ports == 0:
		return 0, 0
	case i == 0:
		return 0, c.Ports
	}
	at := int(c.Ports) + portsOfCoordinator + portsOfOthers*(i-1)
	return at, cluster.Ports(at + 1)
}
