package join

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
)

// version is the version of the messages. A server answers others with CodeVersion.
const version = 1

// Bounds of a message, in bytes.
const (
	maxRequest = 4 << 10
	maxReply   = 64 << 10
)

// exporterLabel names the value of a TLS connection that a request signs (RFC 8446, 7.5). It
// differs on each connection, so a signature is of no use on another one.
const exporterLabel = "EXPORTER-shoal-join-v1"

// request is the request for a grant.
type request struct {
	Version   int    `json:"version"`
	Token     string `json:"token"` // its ID
	Signature []byte `json:"signature"`
	Machine   string `json:"machine"` // its name, for the log and `shoal token list`
	Ports     []int  `json:"ports,omitempty"`
}

// maxPorts is the maximum number of tried ports in a request.
const maxPorts = 5

// reply answers a request.
type reply struct {
	Grant   *Grant   `json:"grant,omitempty"`
	Refusal *Refusal `json:"refusal,omitempty"`
}

// Grant is the server's answer to a valid token.
type Grant struct {
	Cluster string    `json:"cluster"`
	Keys    []string  `json:"keys"`  // cluster keys, the one in use first
	Join    []string  `json:"join"`  // gossip addresses
	Model   string    `json:"model"` // reference of the model; empty: it is a folder of the first machine
	Seen    string    `json:"seen"`  // address that the request came from
	Closed  []string  `json:"closed,omitempty"`
	Time    time.Time `json:"time"` // by the clock of the first machine
}

// keyText returns the grant's keys as a key file has them.
func (g *Grant) keyText() string { return strings.Join(g.Keys, "\n") + "\n" }

// check refuses a grant that is of no use.
func (g *Grant) check() error {
	if g.Cluster == "" || len(g.Keys) == 0 || len(g.Join) == 0 {
		return fmt.Errorf("join: the first machine sent no key or no address")
	}
	if err := CheckCluster(g.Cluster); err != nil { // it names a folder
		return fmt.Errorf("join: the first machine sent a name: %w", err)
	}
	for _, k := range g.Keys {
		if _, err := security.ParseKey(k); err != nil {
			return err
		}
	}
	for _, at := range g.Join {
		if _, _, err := security.HostPort(at); err != nil {
			return fmt.Errorf("join: the first machine sent the address %w", err)
		}
	}
	return nil
}

// signed returns the bytes that a request signs.
func signed(exported []byte, r *request) []byte {
	return fmt.Appendf(nil, "shoal join v%d\n%x\n%s\n%s\n%v", version, exported, r.Token, r.Machine, r.Ports)
}

func send(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// receive reads one message of at most limit bytes.
func receive(r io.Reader, limit int64, v any) error {
	return json.NewDecoder(io.LimitReader(r, limit)).Decode(v)
}
